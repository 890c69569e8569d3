"""A controller without its API door, and agents whose node is a stand-in: what the session tests are made of."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db import connections

from agent.config import Config
from agent.session import Machine, Session
from horchestra import kinds
from horchestra.apimachinery.admission import SYSTEM
from horchestra.controllers import manager
from horchestra.controllers.application import ApplicationController
from horchestra.controllers.events import EventRecorder
from horchestra.controllers.namespace import NamespaceController, ensure_default
from horchestra.controllers.node_lifecycle import NodeLifecycleController
from horchestra.controllers.persistentvolume import PersistentVolumeController
from horchestra.kinds.application import Application
from horchestra.kinds.event import Event
from horchestra.kinds.node import Node
from horchestra.nodes import server as door
from horchestra.nodes.sessions import Sessions
from horchestra.pki import nodes, server
from horchestra.pki.ca import CertificateAuthority
from horchestra.storage.options import DeleteOptions, WriteOptions
from horchestra.storage.store import Store
from tests.integration.nodes.standin import StandIn

WRITE = WriteOptions(user=SYSTEM)


class Controller:
    """Store, controllers and the agents' door on one data directory. May be stopped and started again."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.port = 0
        self._tasks: asyncio.Task[None] | None = None

    async def start(self) -> Controller:
        self.data_dir.mkdir(exist_ok=True)
        use_database(self.data_dir / "db.sqlite3")
        await asyncio.to_thread(_migrate)
        self.authority = CertificateAuthority.load_or_create(self.data_dir / "pki")
        chain = server.ensure(self.authority, self.data_dir / "pki", ["localhost", "127.0.0.1"])
        self.store = Store(kinds.builtin(), data_dir=self.data_dir)
        await self.store.start()
        await ensure_default(self.store)
        self.recorder = EventRecorder(self.store)
        self.sessions = Sessions(self.store, self.recorder)
        self._tasks = asyncio.create_task(self._run())
        self._door, self.port = await door.serve(
            self.sessions, "127.0.0.1", self.port, lambda: (chain.key, chain.certificate, chain.ca)
        )
        return self

    async def _run(self) -> None:
        controllers: list[manager.Controller] = [
            NamespaceController(self.store),
            NodeLifecycleController(self.store, self.recorder),
            ApplicationController(self.store, self.recorder),
            PersistentVolumeController(self.store),
        ]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.recorder.run())
            tasks.create_task(self.sessions.run())
            tasks.create_task(manager.run(self.store, controllers))

    async def stop(self) -> None:
        if self._tasks is None:
            return
        await self.sessions.close()
        await self._door.stop(0.5)
        self._tasks.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._tasks
        self._tasks = None
        await self.store.close()
        connections.close_all()

    async def bundle(self, node: str) -> dict[str, str]:
        made = await asyncio.to_thread(_bundle, self.authority, node, f"127.0.0.1:{self.port}")
        content: dict[str, str] = json.loads(made)
        return content

    # What the store says

    def node(self, name: str) -> dict[str, Any]:
        entry = self.store.watch.get(Node, "", name)
        return entry.obj if entry else {}

    def condition(self, name: str, kind: str) -> tuple[str, str, str]:
        conditions = self.node(name).get("status", {}).get("conditions", [])
        found: dict[str, str] = next((c for c in conditions if c["type"] == kind), {})
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    def application(self, name: str, namespace: str = "default") -> dict[str, Any]:
        entry = self.store.watch.get(Application, namespace, name)
        return entry.obj if entry else {}

    def phase(self, name: str) -> str:
        return str(self.application(name).get("status", {}).get("phase", ""))

    def events(self) -> set[str]:
        return {e.obj["reason"] for e in self.store.watch.list(Event)}

    # What somebody does with kubectl

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        cls = self.store.registry.kind(manifest["apiVersion"], manifest["kind"])
        if cls.resource.namespaced:
            manifest["metadata"].setdefault("namespace", "default")
        return (await self.store.create(cls, manifest, WRITE)).obj

    async def apply(self, name: str, node: str, **spec: Any) -> dict[str, Any]:
        return await self.create(application(name, node, **spec))

    async def change(self, name: str, **spec: Any) -> None:
        await self.store.update(Application, "default", name, lambda o: {**o, "spec": {**o["spec"], **spec}}, WRITE)

    async def delete(self, name: str, grace: int | None = None) -> None:
        await self.store.delete(Application, "default", name, DeleteOptions(user=SYSTEM, grace_period_seconds=grace))

    async def annotate(self, node: str, key: str, value: str) -> None:
        def change(obj: dict[str, Any]) -> dict[str, Any]:
            annotations = {**obj["metadata"].get("annotations", {}), key: value}
            return {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}

        await self.store.update(Node, "", node, change, WRITE)


def application(name: str, node: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "orch.ks-tool.dev/v1",
        "kind": "Application",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"image": "registry.example/app:1", "nodeName": node, **spec},
    }


def use_database(path: Path) -> None:
    """Point Django's default database at a file, in every thread."""
    connections.close_all()
    connections.settings["default"]["NAME"] = str(path)


def _migrate() -> None:
    try:
        call_command("migrate", verbosity=0, interactive=False)
    finally:
        connections.close_all()


def _bundle(authority: CertificateAuthority, node: str, endpoint: str) -> bytes:
    try:
        return nodes.bundle(authority, node, endpoint)
    finally:
        connections.close_all()


class Agent:
    """A joined agent with a stand-in runtime; stopping and starting it keeps what it has on disk."""

    def __init__(self, directory: Path, bundle: dict[str, str], machine_id: str = "m1") -> None:
        self.directory = directory
        self.runtime = StandIn()
        self.machine = Machine(machine_id, "b1")
        self._task: asyncio.Task[None] | None = None
        install(directory, bundle)
        self.config = Config(node=bundle["node"], endpoint=bundle["endpoint"], state_dir=directory, directory=directory)

    def start(self) -> Agent:
        self.session = Session(self.config, self.runtime, self.machine)
        self._task = asyncio.create_task(self.session.run())
        return self

    async def stop(self) -> None:
        """With a goodbye."""
        if self._task is not None:
            self.session.stop()
            await self._task
            self._task = None

    async def kill(self) -> None:
        """Without a word."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def memory(self) -> dict[str, Any]:
        path = self.directory / "session.json"
        content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return content

    def connection(self) -> dict[str, Any]:
        path = self.directory / "connection.json"
        content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"connected": False, "reason": ""}
        return content


def install(directory: Path, bundle: dict[str, str]) -> None:
    pki = directory / "pki"
    pki.mkdir(parents=True, exist_ok=True)
    for name, key in (("ca.pem", "ca"), ("node.pem", "certificate"), ("node.key", "key")):
        (pki / name).write_text(bundle[key])
