"""PersistentVolumes: who uses each, where it lies, and what older data of its name is kept on the node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from horchestra.kinds.application import Application
from horchestra.kinds.node import Node
from horchestra.kinds.persistentvolume import PersistentVolume
from horchestra.nodes.conditions import condition, merge
from horchestra.storage.store import Store
from horchestra.storage.watch import Event, EventType

from .application import WRITE
from .manager import DONE, Key, Round
from .placement import mounted

KIND = PersistentVolume.resource.qualified


class PersistentVolumeController:
    name = "persistentvolume"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mounts: dict[Key, frozenset[str]] = {}
        self._users: dict[str, set[Key]] = {}

    def start(self) -> Iterable[Key]:
        self._mounts.clear()
        self._users.clear()
        for entry in self._store.watch.list(Application):
            self._index(entry.key, frozenset(mounted(entry.obj)))
        return [entry.key for entry in self._store.watch.list(PersistentVolume)]

    def keys(self, event: Event) -> Iterable[Key]:
        entry = event.entry
        if entry.cls is PersistentVolume:
            return () if event.type is EventType.DELETED else (entry.key,)
        if entry.cls is Application:
            before = self._mounts.get(entry.key, frozenset())
            after = frozenset[str]() if event.type is EventType.DELETED else frozenset(mounted(entry.obj))
            self._index(entry.key, after)
            return {(KIND, "", name) for name in before ^ after}
        if entry.cls is Node and (event.previous is None or _volumes(event.previous.obj) != _volumes(entry.obj)):
            return {e.key for e in self._store.watch.list(PersistentVolume) if e.obj["spec"]["node"] == entry.name}
        return ()

    def _index(self, key: Key, names: frozenset[str]) -> None:
        for name in self._mounts.pop(key, frozenset()):
            self._users[name].discard(key)
            if not self._users[name]:
                del self._users[name]
        if names:
            self._mounts[key] = names
        for name in names:
            self._users.setdefault(name, set()).add(key)

    async def reconcile(self, key: Key) -> Round:
        entry = self._store.watch.get(PersistentVolume, "", key[2])
        if entry is None:
            return DONE
        node = self._store.watch.get(Node, "", entry.obj["spec"]["node"])
        users = sorted(f"{namespace}/{name}" for _, namespace, name in self._users.get(entry.name, ()))
        there = None if node is None else node.obj
        if stated(entry.obj, users, there) != entry.obj:
            await self._store.update(
                PersistentVolume,
                "",
                entry.name,
                lambda obj: stated(obj, users, there),
                WRITE,
                subresource="status",
            )
        if entry.obj["metadata"].get("deletionTimestamp") and users:
            return Round(f"is being deleted and still used by {', '.join(users)}")
        return DONE


def stated(obj: dict[str, Any], users: list[str], node: dict[str, Any] | None) -> dict[str, Any]:
    """The volume with its observed state. Pure."""
    meta, stored = obj["metadata"], obj.get("status") or {}
    status = {**stored, "users": users, **_phase(obj, users, node)}
    reports = _volumes(node)
    mine = next((v for v in reports if v["uid"] == meta["uid"]), None)
    conditions = list(stored.get("conditions") or [])
    adopts = obj["spec"].get("adopt")
    if mine is not None:
        status["path"] = mine["path"]
        if mine.get("bytes") is not None:
            status["usedBytes"] = mine["bytes"]
        enforced = mine["quota_enforced"]
        words = (
            ""
            if enforced
            else "no project quota can be set on the node's file system: size counts at admission, and use is shown"
        )
        reason = "ProjectQuota" if enforced else "NotSupported"
        conditions = merge(conditions, [condition("QuotaEnforced", "True" if enforced else "False", reason, words)])
        if adopts:
            words = f"holds the data kept of {adopts}"
            conditions = merge(conditions, [condition("Adopted", "True", "Adopted", words)])
    # A volume that takes data back is not empty, whatever else of its name is kept.
    adopts = adopts or any(c["type"] == "Adopted" for c in conditions)
    kept = [v for v in reports if v["name"] == meta["name"] and v["uid"] != meta["uid"]]
    if kept and not adopts:
        conditions = merge(conditions, [_previous(kept[0])])
    else:
        conditions = [c for c in conditions if c["type"] != "PreviousData"]
    return {**obj, "status": {**status, "conditions": conditions}}


def _phase(obj: dict[str, Any], users: list[str], node: dict[str, Any] | None) -> dict[str, str]:
    name = obj["spec"]["node"]
    if obj["metadata"].get("deletionTimestamp"):
        message = f"is deleted when the last user is gone: {', '.join(users)}" if users else ""
        return {"phase": "Terminating", "reason": "InUse" if users else "", "message": message}
    if node is None:
        message = f'node "{name}" is not registered; create it with manage.py createnodecert {name}'
        return {"phase": "Pending", "reason": "NodeNotRegistered", "message": message}
    return {"phase": "Bound" if users else "Available", "reason": "", "message": ""}


def _previous(kept: dict[str, Any]) -> dict[str, Any]:
    size = "" if kept.get("bytes") is None else f"{kept['bytes']} bytes, "
    message = (
        f"data of a deleted volume of this name is kept at {kept['path']} ({size}uid {kept['uid']}); "
        f"this volume is new and empty. To take the data back, delete it and create it with spec.adopt: {kept['uid']}"
    )
    return condition("PreviousData", "True", "PreviousData", message)


def _volumes(node: dict[str, Any] | None) -> list[dict[str, Any]]:
    return ((node or {}).get("status") or {}).get("volumes") or []
