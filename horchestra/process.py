"""One controller process: store, controllers and the two doors on one event loop, started and stopped as one."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import logging
import os
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from django.core.management import call_command
from django.db import DatabaseError, connections

from horchestra import kinds
from horchestra.apiserver import listener, tls
from horchestra.apiserver.app import APIServer
from horchestra.audit import log as audit
from horchestra.authz.authorizer import Authorizer
from horchestra.controllers import manager
from horchestra.controllers.application import ApplicationController
from horchestra.controllers.events import EventRecorder
from horchestra.controllers.namespace import NamespaceController, ensure_default
from horchestra.controllers.node_lifecycle import NodeLifecycleController
from horchestra.controllers.persistentvolume import PersistentVolumeController
from horchestra.nodes import server as agents
from horchestra.nodes.sessions import Sessions
from horchestra.pki import files, kubeconfig, server
from horchestra.pki.ca import AuthorityError, CertificateAuthority
from horchestra.ports import holder
from horchestra.storage.envelope import EnvelopeError
from horchestra.storage.store import Store

log = logging.getLogger("horchestra.process")

RENEWAL_SECONDS = 3600.0
"""How often the server certificate's age is looked at."""


class StartError(Exception):
    """The controller cannot start; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How `runcontroller` was called. A port of 0 takes any free one."""

    data_dir: Path
    api: tuple[str, int]
    agents: tuple[str, int]
    server_names: tuple[str, ...] = ()
    ready_file: Path | None = None
    """Written, as JSON, when both doors are open."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """What came of ports of 0: `api` is a URL, `agents` HOST:PORT."""

    api: str
    agents: str
    kubeconfig: str


async def run(settings: Settings) -> None:
    """Until SIGTERM or SIGINT. Raises StartError."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with controller(settings) as addresses:
        log.info("ready: API on %s, agents on %s, kubeconfig %s", addresses.api, addresses.agents, addresses.kubeconfig)
        await stopped.wait()
        log.info("stopping")
    log.info("stopped")


@asynccontextmanager
async def controller(settings: Settings) -> AsyncIterator[Addresses]:
    """A controller that runs while the context is open: doors open on entry, closed in order on exit."""
    async with AsyncExitStack() as stack:
        stack.enter_context(lock(settings.data_dir))
        authority, chain = _certificates(settings)
        store = Store(kinds.builtin(), data_dir=settings.data_dir)
        await _start_store(store)  # after the lock: it migrates
        stack.push_async_callback(store.close)
        await ensure_default(store)
        recorder = EventRecorder(store)
        sessions = Sessions(store, recorder)
        background = await stack.enter_async_context(_background())
        for work in (
            recorder.run,
            sessions.run,
            lambda: manager.run(
                store,
                [
                    NamespaceController(store),
                    NodeLifecycleController(store, recorder),
                    ApplicationController(store, recorder),
                    PersistentVolumeController(store),
                ],
            ),
        ):
            background(work)
        stack.push_async_callback(recorder.flush)
        agents_port = await _agents_door(stack, sessions, settings, chain)
        context = tls.server_context(chain.certificate, chain.key, chain.ca)
        api_port = await _api_door(stack, store, sessions, settings, context)
        background(lambda: _renew(authority, settings, context))
        yield _announce(authority, settings, api_port, agents_port)
        if settings.ready_file:
            settings.ready_file.unlink(missing_ok=True)


class lock:
    """One controller per data directory: two on one SQLite file would each believe their own memory."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "controller.lock"
        self._file: IO[str] | None = None

    def __enter__(self) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = self._path.open("a+")
        except OSError as error:
            raise StartError(
                f"cannot write to {self._path.parent} ({error.strerror}); it is the data directory"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            pid = self._file.read().strip() or "unknown"
            self._file.close()
            raise StartError(
                f"another controller (pid {pid}) uses {self._path.parent}; stop it, or set HORCHESTRA_DATA_DIR"
            ) from None
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()


def _certificates(settings: Settings) -> tuple[CertificateAuthority, server.ServerFiles]:
    pki = settings.data_dir / "pki"
    try:
        authority = CertificateAuthority.load_or_create(pki)
        return authority, server.ensure(authority, pki, _host_names(settings))
    except AuthorityError as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError(f"cannot write to {pki}: {error.strerror}") from error


def _host_names(settings: Settings) -> list[str]:
    bound = server.reachable(settings.api[0])
    return server.host_names([*settings.server_names, *([bound] if bound else [])])


async def _start_store(store: Store) -> None:
    try:
        await asyncio.to_thread(_migrate)
        await store.start()
        spare_collector()
    except DatabaseError as error:
        raise StartError(f"the database does not answer: {error}".strip()) from error
    except EnvelopeError as error:
        raise StartError(str(error)) from error


def spare_collector() -> None:
    """To be called when memory is filled: the garbage collector leaves alone what is there, and looks through all that
    came later once in a few ten thousand writes. By default a sixth of each write went into that."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(2000, 10, 100)


def _migrate() -> None:
    try:
        call_command("migrate", verbosity=0, interactive=False)
    finally:
        connections.close_all()


@asynccontextmanager
async def _background() -> AsyncIterator[Callable[[Callable[[], Awaitable[None]]], None]]:
    """Tasks that run as long as the controller does; one that fails ends it."""
    failure: Exception | None = None
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []

        async def work(function: Callable[[], Awaitable[None]]) -> None:
            await function()

        try:
            yield lambda function: tasks.append(group.create_task(work(function)))
        except Exception as error:
            failure = error  # raised below: a task group would wrap it
        finally:
            for task in tasks:
                task.cancel()
    if failure is not None:
        raise failure


async def _agents_door(stack: AsyncExitStack, sessions: Sessions, settings: Settings, chain: server.ServerFiles) -> int:
    host, port = settings.agents
    try:
        door, bound = await agents.serve(sessions, host, port, lambda: (chain.key, chain.certificate, chain.ca))
    except OSError as error:
        raise StartError(_taken("agents", host, port, error)) from error

    async def close() -> None:
        await sessions.close()
        await door.stop(1)

    stack.push_async_callback(close)
    return bound


async def _api_door(
    stack: AsyncExitStack, store: Store, sessions: Sessions, settings: Settings, context: ssl.SSLContext
) -> int:
    host, port = settings.api
    app = APIServer(store, Authorizer(), audit.write, sessions)
    try:
        door = await listener.serve(app, host, port, context)
    except OSError as error:
        raise StartError(_taken("the API", host, port, error)) from error

    async def close() -> None:
        app.close()
        door.close()
        await door.wait_closed(1.5)

    stack.push_async_callback(close)
    return door.port


def _taken(what: str, host: str, port: int, error: OSError) -> str:
    who = holder(port)
    taken = f"it is held by {who}" if who else str(error.strerror or error)
    return f"cannot listen on {host}:{port} for {what}: {taken}; choose another with --api-bind or --agent-bind"


def _announce(authority: CertificateAuthority, settings: Settings, api_port: int, agents_port: int) -> Addresses:
    host = settings.api[0]
    path = settings.data_dir / "admin.kubeconfig"
    addresses = Addresses(kubeconfig.server_url(host, api_port), f"{settings.agents[0]}:{agents_port}", str(path))
    try:
        kubeconfig.ensure_admin(authority, path, kubeconfig.server_url(host, api_port, settings.server_names))
        if settings.ready_file:
            ready = {"api": addresses.api, "agents": addresses.agents, "kubeconfig": addresses.kubeconfig}
            files.write(settings.ready_file, json.dumps(ready).encode() + b"\n", 0o644)
    except OSError as error:
        raise StartError(f"cannot write {error.filename or path}: {error.strerror}") from error
    return addresses


async def _renew(authority: CertificateAuthority, settings: Settings, context: ssl.SSLContext) -> None:
    """Renew the server certificate in place: new connections get the new one, open ones stay."""
    pki, names = settings.data_dir / "pki", _host_names(settings)
    while True:
        await asyncio.sleep(RENEWAL_SECONDS)
        try:
            chain = await asyncio.to_thread(server.ensure, authority, pki, names)
            if chain.renewed:
                context.load_cert_chain(chain.certificate, chain.key)
                log.info("the server certificate was renewed")
        except (OSError, ssl.SSLError) as error:
            log.error("the server certificate could not be renewed: %s", error)
