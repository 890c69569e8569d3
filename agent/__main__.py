"""`python -m agent run | join | status`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from . import certificates, config, lock, log, memory
from .config import Config, Mirror
from .errors import AgentError
from .join import Bundle, Places, check, join

DEFAULT_CONFIG = config.DEFAULT_DIRECTORY / "agent.toml"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 1 with one line on stderr."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "join":
            join(options.bundle, Places(config=options.config_dir), options.mirror, rename=options.rename)
        elif options.command == "status":
            return status(config.load(options.config), options.check)
        else:
            configured = config.load(options.config)
            lock.take(configured.state_dir)
            log.configure()
            asyncio.run(run(configured))
    except AgentError as error:
        sys.stdout.flush()
        sys.stderr.write(f"{error.reason}: {error.message}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m agent", description="The node's side of Horchestra.")
    commands = parser.add_subparsers(dest="command", required=True)
    joining = commands.add_parser("join", help="check the way to the controller, then install certificate and service")
    joining.add_argument("bundle", type=Path, help="file that createnodecert wrote")
    joining.add_argument("--config-dir", type=Path, default=config.DEFAULT_DIRECTORY)
    joining.add_argument(
        "--mirror",
        type=_mirror,
        action="append",
        default=[],
        metavar="REGISTRY=URL",
        help="pull images of REGISTRY from URL; may be repeated",
    )
    joining.add_argument(
        "--rename",
        action="store_true",
        help="let a node that has joined take another name: the old Node goes Unknown, its applications go on here as "
        "orphans",
    )
    for name, words in (("run", "what the service runs"), ("status", "since when connected, or alone")):
        command = commands.add_parser(name, help=words)
        command.add_argument("--config", type=Path, default=DEFAULT_CONFIG)
        if name == "status":
            command.add_argument("--check", action="store_true", help="try the way to the controller step by step")
    return parser


def _mirror(text: str) -> Mirror:
    registry, equals, endpoint = text.partition("=")
    if not equals or not registry or not endpoint.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not REGISTRY=URL; write it as docker.io=http://10.0.0.5:5000")
    return Mirror(registry=registry, endpoint=endpoint)


async def run(configured: Config) -> None:
    """Until SIGTERM or SIGINT: then goodbye to the controller, and everything on the node stays as it is."""
    from .images.mirrors import RegistryConfig, RegistryMirror
    from .layout import Layout
    from .node import NodeConfig, NodeRuntime
    from .session import Machine, Session

    mirrors = (RegistryMirror(m.registry, m.endpoint, m.rewrite, m.ca) for m in configured.mirror)
    runtime = NodeRuntime(
        NodeConfig(
            node=configured.node,
            layout=Layout(state=configured.state_dir),
            registry=RegistryConfig(tuple(mirrors), configured.mirror_fallback, configured.registry_ca),
            pulls=configured.limits.pulls,
        )
    )
    failure: AgentError | None = None
    await runtime.start()
    session = Session(configured, runtime, Machine.here())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, session.stop)
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(runtime.run())
            await session.run()
            running.cancel()
    except* AgentError as group:
        failure = _first(group)
    if failure is not None:
        raise failure


def _first(group: BaseExceptionGroup[AgentError]) -> AgentError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def status(configured: Config, checking: bool) -> int:
    """0 when connected, 1 when not."""
    connection = memory.load_connection(configured.state_dir / "connection.json")
    followed = memory.load(configured.state_dir / "session.json")
    pid = lock.holder(configured.state_dir)
    print(f"node        {configured.node}")
    if pid is None:
        print("agent       not running: systemctl start horchestra-agent")
    elif connection is None or connection.pid != pid:
        print(f"agent       starting, pid {pid}")
    else:
        state = "connected to" if connection.connected else "alone, without"
        print(f"agent       {state} {configured.endpoint} since {connection.since} ({connection.reason})")
    print(f"follows     lineage {followed.lineage or 'none'}, revision {followed.revision}")
    if followed.pause:
        print(f"paused      since {followed.pause.since}: {followed.pause.reason}")
    if checking:
        identity = certificates.load(configured.pki)
        bundle = Bundle(
            node=configured.node,
            endpoint=configured.endpoint,
            ca=identity.ca.decode(),
            certificate=identity.certificate.decode(),
            key=identity.key.decode(),
        )
        check(bundle, identity)
    return 0 if connection is not None and connection.pid == pid and connection.connected else 1


if __name__ == "__main__":
    # Read by gRPC when it is imported: its own complaints about refused connections are said once, by the session.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(main())
