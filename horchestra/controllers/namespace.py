"""Namespaces: `default` is always there; one that is deleted is emptied first, as Kubernetes does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from horchestra.apimachinery.admission import SYSTEM
from horchestra.apimachinery.errors import StatusError
from horchestra.kinds.namespace import FINALIZER, Namespace
from horchestra.storage.options import DeleteOptions
from horchestra.storage.store import Store
from horchestra.storage.watch import Entry, Event, EventType

from .application import WRITE
from .manager import DONE, Key, Round

DEFAULT = "default"
KIND = Namespace.resource.qualified


class NamespaceController:
    name = "namespace"

    def __init__(self, store: Store) -> None:
        self._store = store

    def start(self) -> Iterable[Key]:
        return {(KIND, "", DEFAULT), *(entry.key for entry in self._store.watch.list(Namespace))}

    def keys(self, event: Event) -> Iterable[Key]:
        entry = event.entry
        if entry.cls is Namespace:
            return (entry.key,)
        if entry.namespace and event.type is not EventType.MODIFIED and self._terminating(entry.namespace):
            return ((KIND, "", entry.namespace),)
        return ()

    def _terminating(self, name: str) -> bool:
        entry = self._store.watch.get(Namespace, "", name)
        return entry is not None and bool(entry.obj["metadata"].get("deletionTimestamp"))

    async def reconcile(self, key: Key) -> Round:
        entry = self._store.watch.get(Namespace, "", key[2])
        if entry is None:
            if key[2] == DEFAULT:
                await ensure_default(self._store)
            return DONE
        if not self._terminating(entry.name):
            return DONE
        await self._store.update(Namespace, "", entry.name, _terminating_phase, WRITE, subresource="status")
        left = await self._empty(entry.name)
        if left:
            counted = Counter(e.cls.resource.plural for e in left)
            return Round("waits for " + ", ".join(f"{n} {plural}" for plural, n in sorted(counted.items())), again=30)
        await self._store.update(Namespace, "", entry.name, _released, WRITE)
        return DONE

    async def _empty(self, namespace: str) -> list[Entry]:
        """Ask for the deletion of everything in it; what is still there."""
        left: list[Entry] = []
        for cls in self._store.registry:
            if cls.resource.namespaced:
                left += self._store.watch.list(cls, namespace)
        for entry in left:
            if entry.obj["metadata"].get("deletionTimestamp"):
                continue
            try:
                await self._store.delete(entry.cls, namespace, entry.name, DeleteOptions(user=SYSTEM, uid=entry.uid))
            except StatusError as error:
                if error.reason not in ("NotFound", "Conflict"):
                    raise
        return left


async def ensure_default(store: Store) -> None:
    """Create namespace `default` when it is missing."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": DEFAULT}}
    try:
        await store.create(Namespace, manifest, WRITE)
    except StatusError as error:
        if error.reason != "AlreadyExists":
            raise


def _terminating_phase(obj: dict[str, Any]) -> dict[str, Any]:
    return {**obj, "status": {**(obj.get("status") or {}), "phase": "Terminating"}}


def _released(obj: dict[str, Any]) -> dict[str, Any]:
    meta = obj["metadata"]
    return {**obj, "metadata": {**meta, "finalizers": [f for f in meta.get("finalizers") or [] if f != FINALIZER]}}
