"""`make demo` and `make demo-down`: registry, controller and one systemd node with the example running on it.

Every step looks first and does only what is missing, so that `up` can be repeated, also after one that failed half-way.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from tests.lab import caches, estate
from tests.lab.command import CommandError, run
from tests.lab.daemon import Daemon
from tests.lab.estate import Estate
from tests.lab.images.catalogue import push_all
from tests.lab.network import LabNetwork
from tests.lab.node import Node
from tests.lab.nodes import Nodes
from tests.lab.paths import PROJECT, RUNS, STATE, VENV
from tests.lab.registry import Registry
from tests.lab.server import answers

Result = TypeVar("Result")

ID = "demo"
NODE = "sav-01"
DIRECTORY = STATE / "demo"
KUBECONFIG = DIRECTORY / "admin.kubeconfig"
EXAMPLE = PROJECT / "examples" / "postgres.yaml"
API = "127.0.0.1:6443"
AGENT_PORT = 6444
_ENVIRONMENT = {**os.environ, "HORCHESTRA_DATA_DIR": str(DIRECTORY)}
# The kubectl of this machine, else the one of the virtual environment.
_KUBECTL = (shutil.which("kubectl") or VENV / "bin" / "kubectl", f"--kubeconfig={KUBECONFIG}")
_REGISTRY = Daemon(DIRECTORY, "registry", "docker-registry")
_CONTROLLER = Daemon(DIRECTORY, "controller", "runcontroller")


def up() -> None:
    """Bring the demo up and print what to type next. Raises CommandError, RuntimeError or TimeoutError."""
    started = time.monotonic()
    print("Two to four minutes the first time (a node and twelve images are built), some ten seconds later on:")
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    network = LabNetwork(Estate(ID, lasting=True), isolated=False)
    network.up()
    registry = Registry(DIRECTORY / "registry", network.address)
    _step("images and registry", lambda: _serve_images(registry))
    _step("controller", lambda: _start_controller(network.address))
    node = _step(f"node {NODE}", lambda: _boot(network))
    _step("agent", lambda: _join(node, network.address, registry))
    _step(EXAMPLE.name, lambda: _apply(node))
    network.estate.release()
    print(_next_steps(node, registry, time.monotonic() - started))


def down() -> None:
    """Remove all of it, caches excepted. Safe to repeat."""
    _CONTROLLER.stop()
    _REGISTRY.stop()
    if (RUNS / ID).exists():
        estate.remove(ID)
        LabNetwork(Estate(ID), isolated=False).down()
        estate.remove(ID)
    shutil.rmtree(DIRECTORY, ignore_errors=True)


def _serve_images(registry: Registry) -> None:
    caches.build_all(report=lambda line: print(f"\n    {line} ", end="", flush=True))
    _REGISTRY.start(registry.command(), registry.ready)
    push_all(registry.endpoint)


def _start_controller(address: str) -> None:
    doors = ("--api-bind", API, "--agent-bind", f"{address}:{AGENT_PORT}", "--server-name", address)
    command = (VENV / "bin" / "python", PROJECT / "manage.py", "runcontroller", *doors)
    _CONTROLLER.start(command, _api_is_ready, _ENVIRONMENT)


def _api_is_ready() -> bool:
    return KUBECONFIG.exists() and _kubectl("get", "--raw", "/readyz", check=False) == "ok"


def _boot(network: LabNetwork) -> Node:
    node = Nodes(network).create(NODE)
    node.start()
    node.wait_ready()
    return node


def _join(node: Node, address: str, registry: Registry) -> None:
    """Certificate, mirror, service; a node that has joined is left as it is."""
    if not node.path("/etc/horchestra/agent.toml").exists():
        bundle = DIRECTORY / f"{NODE}.bundle"
        bundle.unlink(missing_ok=True)
        manage = (VENV / "bin" / "python", PROJECT / "manage.py", "createnodecert", NODE)
        run(*manage, "--out", bundle, "--endpoint", f"{address}:{AGENT_PORT}", env=_ENVIRONMENT)
        node.write("/root/node.bundle", bundle.read_text(), 0o600)
        mirror = f"docker.io=http://{registry.endpoint}"
        node.exec("python3", "-m", "agent", "join", "/root/node.bundle", "--mirror", mirror)
        node.path("/root/node.bundle").unlink()
        bundle.unlink()
    node.exec("systemctl", "enable", "--quiet", "--now", "horchestra-agent.service")


def _apply(node: Node) -> None:
    """Apply the example when its node has reported, then wait until it runs and has made its database."""
    _wait(node, f"node/{NODE}", "condition=Ready", 30)
    _kubectl("apply", "-f", str(EXAMPLE))
    _wait(node, "app/postgres-18", "jsonpath={.status.phase}=Running", 90)
    deadline = time.monotonic() + 30
    while not answers(node.address, 5432):
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"postgres-18 runs but does not answer on {node.address}:5432; see kubectl logs postgres-18"
            )
        time.sleep(0.1)


def _wait(node: Node, what: str, state: str, timeout: float) -> None:
    """Wait for a state of an object, which need not exist yet. Raises TimeoutError with what the agent said last."""
    deadline = time.monotonic() + timeout
    while run(*_KUBECTL, "wait", f"--for={state}", what, "--timeout=5s", check=False).returncode != 0:
        if time.monotonic() > deadline:
            shown = _kubectl("get", what, "-o", "yaml", check=False)
            said = node.exec("journalctl", "-u", "horchestra-agent", "-n", "20", "-o", "cat", check=False).stdout
            raise TimeoutError(f"{what}: not {state} within {timeout:.0f} s\n{shown}\nThe agent said last:\n{said}")
        time.sleep(0.2)


def _kubectl(*words: str, check: bool = True) -> str:
    return run(*_KUBECTL, *words, check=check).stdout.strip()


def _step(name: str, action: Callable[[], Result]) -> Result:
    print(f"  {name} ... ", end="", flush=True)
    started = time.monotonic()
    result = action()
    print(f"{time.monotonic() - started:.1f} s", flush=True)
    return result


def _next_steps(node: Node, registry: Registry, seconds: float) -> str:
    kubectl = "kubectl" if shutil.which("kubectl") else f"{VENV.relative_to(PROJECT)}/bin/kubectl"
    return f"""
Running after {seconds:.0f} s. What to type next, here in {PROJECT}:

  export KUBECONFIG={KUBECONFIG.relative_to(PROJECT)}
  {kubectl} get app,pv,node -o wide
  {kubectl} logs -f postgres-18
  {kubectl} describe app postgres-18
  psql -h {node.address} -U postgres -c 'select version()'
  {kubectl} delete -f examples/postgres.yaml

  The images are stand-ins made of Debian's packages: postgres:18-alpine is the PostgreSQL of Debian.
  registry: http://{registry.endpoint}    logs: {DIRECTORY.relative_to(PROJECT)}/*.log
  shell on the node: nsenter -t {node.leader} -m -p -n -i -u -C -w -- bash
  make demo-down removes all of it.
"""


def main(argv: list[str]) -> int:
    if argv not in (["up"], ["down"]):
        print("usage: python -m tests.lab.demo up|down", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("the demo makes a bridge, mounts and a systemd node: run it as root", file=sys.stderr)
        return 1
    try:
        up() if argv == ["up"] else down()
    except (CommandError, RuntimeError, TimeoutError) as error:
        print(f"failed\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
