"""The API door with a store behind it, in a process of its own, and what a bench needs to reach it.

    python -m tests.bench.controller DIRECTORY APPLICATIONS

serves until its standard input ends. Beside the API it answers `/constant/N` with the same N bytes each time: what the
same listener can do at best; and `/creates/FIRST/COUNT/WRITERS` creates applications through the store alone and tells
the seconds that took. The audit log is left out as the constant answers have none.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.bench.applications import application
from tests.lab.paths import PROJECT

_LOADERS = 64
_PIECE = 256 * 1024


class Controller:
    """A running one; `port` and `client` (a TLS context with the administrator's certificate) lead to it."""

    def __init__(self, directory: Path, applications: int = 0, environment: Mapping[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        variables = {**os.environ, "HORCHESTRA_DATA_DIR": str(directory), **(environment or {})}
        command = [sys.executable, "-m", "tests.bench.controller", str(directory), str(applications)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables, cwd=PROJECT
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the API server ended with code {self._process.wait()} before it was ready")
        self.port = int(json.loads(line)["port"])
        self.client = ssl.create_default_context(cafile=directory / "pki" / "ca.pem")
        self.client.load_cert_chain(directory / "pki" / "client.pem", directory / "pki" / "client.key")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Instrumented:
    """The API, and in front of it what only benches ask for."""

    def __init__(self, app: Any, store: Any) -> None:
        self._app = app
        self._store = store

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        match scope["path"].split("/")[1:]:
            case ["constant", size]:
                pieces = _constant(int(size))
            case ["creates", first, count, writers]:
                pieces = [json.dumps(await _create(self._store, int(first), int(count), int(writers))).encode()]
            case _:
                await self._app(scope, receive, send)
                return
        length = b"%d" % sum(map(len, pieces))
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in pieces[:-1]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": pieces[-1]})


@lru_cache(maxsize=8)
def _constant(size: int) -> list[bytes]:
    """In pieces: asyncio's TLS takes twice as long over one of 15 MB."""
    return [b"x" * min(_PIECE, size - start) for start in range(0, size, _PIECE)]


async def _serve(directory: Path, applications: int) -> None:
    from horchestra import kinds
    from horchestra.apiserver import listener, tls
    from horchestra.apiserver.app import APIServer
    from horchestra.authz.authorizer import Authorizer
    from horchestra.nodes.sessions import Sessions
    from horchestra.pki import server
    from horchestra.pki.ca import CertificateAuthority
    from horchestra.process import spare_collector
    from horchestra.storage.store import Store

    pki = directory / "pki"
    authority = CertificateAuthority.load_or_create(pki)
    issued = authority.issue_client("bench", ["system:masters"], 1)
    (pki / "client.pem").write_bytes(issued.certificate)
    (pki / "client.key").write_bytes(issued.key)
    files = server.ensure(authority, pki, ["127.0.0.1"])
    store = Store(kinds.builtin())
    await store.start()
    await _create_namespace(store)
    await _create(store, 0, applications, _LOADERS)
    sessions = Sessions(store, lambda obj, kind, reason, message, *, node="": None)
    api = APIServer(store, Authorizer(), lambda record: None, sessions)
    context = tls.server_context(files.certificate, files.key, files.ca)
    door = await listener.serve(Instrumented(api, store), "127.0.0.1", 0, context)
    spare_collector()
    print(json.dumps({"port": door.port}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    api.close()
    door.close()
    await door.wait_closed()
    await store.close()


async def _create(store: Any, first: int, count: int, writers: int) -> float:
    """Creates applications, each writer one after the other; the seconds it took."""
    from horchestra.apimachinery.admission import User
    from horchestra.kinds.application import Application
    from horchestra.storage.options import WriteOptions

    options = WriteOptions(User("bench", ("system:masters",)))
    objects = iter([application(number) for number in range(first, first + count)])

    async def one_after_another() -> None:
        for obj in objects:
            await store.create(Application, obj, options)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(writers):
            group.create_task(one_after_another())
    return time.perf_counter() - started


async def _create_namespace(store: Any) -> None:
    from horchestra.apimachinery.admission import SYSTEM
    from horchestra.kinds.namespace import Namespace
    from horchestra.storage.options import WriteOptions

    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
    await store.create(Namespace, namespace, WriteOptions(SYSTEM))


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "horchestra.settings")
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    main()
