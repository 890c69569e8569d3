"""The whole API door in this process: store on SQLite, application, TLS listener, and clients of any identity."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "horchestra.settings")

import django
from django.core.management import call_command
from django.db import connections

from horchestra import kinds
from horchestra.apimachinery.admission import SYSTEM
from horchestra.apiserver.app import APIServer
from horchestra.apiserver.listener import Listener, serve
from horchestra.audit.log import AuditRecord
from horchestra.authz.authorizer import Authorizer
from horchestra.kinds.namespace import Namespace
from horchestra.nodes.streams import ByteStream
from horchestra.pki import kubeconfig
from horchestra.settings import sqlite
from horchestra.storage.store import Store, WriteOptions

from .wire import Certificates, Wire

WRITE = WriteOptions(SYSTEM)


@dataclass
class Node:
    """The far side of log streams: hands out streams that the test feeds, or the error it was given."""

    asked: list[tuple[str, str, bytes]] = field(default_factory=list)
    streams: list[ByteStream] = field(default_factory=list)
    error: Exception | None = None
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def open_stream(self, node: str, kind: str, request_json: bytes) -> ByteStream:
        self.asked.append((node, kind, request_json))
        if self.error is not None:
            raise self.error
        stream = ByteStream(node, str(len(self.streams)))
        self.streams.append(stream)
        self.opened.set()
        return stream


@dataclass
class Door:
    store: Store
    app: APIServer
    listener: Listener
    certificates: Certificates
    node: Node
    audit: list[AuditRecord]
    wires: list[Wire] = field(default_factory=list)

    async def wire(self, name: str = "admin", groups: Sequence[str] = ("system:masters",)) -> Wire:
        return await self.connect(self.certificates.client(name, groups))

    async def connect(self, files: tuple[Path, Path] | None) -> Wire:
        wire = await Wire.connect(self.listener.port, self.certificates.client_context(files))
        self.wires.append(wire)
        return wire

    def kubeconfig(self) -> Path:
        path = self.certificates.directory / f"admin-{self.listener.port}.kubeconfig"
        kubeconfig.ensure_admin(self.certificates.authority, path, f"https://127.0.0.1:{self.listener.port}")
        return path

    async def put(self, obj: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, Any]:
        """Stores an object past the API, with a status if given."""
        cls = self.store.registry.kind(obj["apiVersion"], obj["kind"])
        written = await self.store.create(cls, obj, WRITE)
        meta = written.obj["metadata"]
        if status is not None:
            namespace, name = meta.get("namespace", ""), meta["name"]
            written = await self.store.update(
                cls, namespace, name, lambda old: {**old, "status": status}, WRITE, subresource="status"
            )
        return written.obj


async def migrate(directory: Path) -> None:
    """A migrated SQLite database in this directory becomes Django's default one."""
    django.setup()
    connections.settings["default"] = connections.configure_settings({"default": sqlite(directory / "db.sqlite3")})[
        "default"
    ]
    # Django keeps a connection for each thread; one that is new here has none to another test's database.
    with ThreadPoolExecutor(1) as pool:
        await asyncio.get_running_loop().run_in_executor(pool, _migrate)


def _migrate() -> None:
    call_command("migrate", verbosity=0)
    connections["default"].close()


@asynccontextmanager
async def opened(directory: Path, certificates: Certificates, **options: Any) -> AsyncIterator[Door]:
    """A door with the namespace `default`."""
    await migrate(directory)
    store = Store(kinds.builtin(), data_dir=directory, **options)
    await store.start()
    audit: list[AuditRecord] = []
    node = Node()
    app = APIServer(store, Authorizer(), audit.append, cast(Any, node), streams_per_user=3)
    listener = await serve(app, "127.0.0.1", 0, certificates.server_context())
    door = Door(store, app, listener, certificates, node, audit)
    try:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
        await store.create(Namespace, namespace, WRITE)
        yield door
    finally:
        for wire in door.wires:
            await wire.close()
        app.close()
        listener.close()
        await listener.wait_closed(grace=1)
        await store.close()
