"""Nodes: says as Events when one becomes ready or is no longer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from horchestra.kinds.node import Node
from horchestra.nodes.conditions import find
from horchestra.nodes.sessions import Recorder
from horchestra.storage.store import Store
from horchestra.storage.watch import Event, EventType

from .manager import DONE, Key, Round


class NodeLifecycleController:
    name = "node"

    def __init__(self, store: Store, record: Recorder) -> None:
        self._store = store
        self._record = record
        self._told: dict[str, str] = {}

    def start(self) -> Iterable[Key]:
        self._told = {e.name: _words(e.obj) for e in self._store.watch.list(Node)}
        return ()

    def keys(self, event: Event) -> Iterable[Key]:
        if event.entry.cls is not Node:
            return ()
        if event.type is EventType.DELETED:
            self._told.pop(event.entry.name, None)
            return ()
        return (event.entry.key,) if _words(event.entry.obj) != self._told.get(event.entry.name) else ()

    async def reconcile(self, key: Key) -> Round:
        entry = self._store.watch.get(Node, "", key[2])
        if entry is None:
            return DONE
        words = _words(entry.obj)
        if words != self._told.get(entry.name):
            self._told[entry.name] = words
            ready = find(entry.obj, "Ready") or {}
            kind, reason = ("Normal", "NodeReady") if words == "True" else ("Warning", "NodeNotReady")
            self._record(entry.obj, kind, reason, ready.get("message") or f'node "{entry.name}" is not ready')
        return Round("" if words == "True" else "is not ready")


def _words(node: dict[str, Any]) -> str:
    return str((find(node, "Ready") or {}).get("status", ""))
