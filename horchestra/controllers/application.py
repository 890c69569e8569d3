"""Applications as long as no node speaks for them: let onto their node, or told why they wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from horchestra.apimachinery.admission import SYSTEM
from horchestra.kinds.application import NODE_FINALIZER, Application
from horchestra.kinds.node import Node
from horchestra.kinds.noderemoval import NodeRemoval
from horchestra.kinds.persistentvolume import PersistentVolume
from horchestra.nodes.conditions import condition, find, merge
from horchestra.nodes.index import placed
from horchestra.nodes.sessions import Recorder
from horchestra.storage.options import DeleteOptions, WriteOptions
from horchestra.storage.store import Store
from horchestra.storage.watch import Entry, Event, EventType

from .manager import DONE, Key, Round
from .placement import mounted, obstacles

WRITE = WriteOptions(user=SYSTEM, field_validation="Ignore", field_manager="horchestra-controllers")
KIND = Application.resource.qualified

WAITING = frozenset({
    "Unscheduled", "NodeNotRegistered", "NodeNotReady", "WaitingForNode", "OutOfCapacity", "PortConflict",
    "VolumeInUse", "VolumeElsewhere", "VolumeNotFound", "VolumeTerminating", "NotOnNode", "",
})  # fmt: skip
"""Reasons of a Pending application that are this controller's to change; others are the node's words."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the application may be on its node, and what it waits for."""

    scheduled: bool
    reason: str
    message: str


class ApplicationController:
    name = "application"

    def __init__(self, store: Store, record: Recorder) -> None:
        self._store = store
        self._record = record
        self._on_node: dict[str, set[Key]] = defaultdict(set)
        self._node_of: dict[Key, str] = {}

    # What to look at

    def start(self) -> Iterable[Key]:
        self._on_node.clear()
        self._node_of.clear()
        for entry in self._store.watch.list(Application):
            self._index(entry)
            yield entry.key

    def keys(self, event: Event) -> Iterable[Key]:
        cls = event.entry.cls
        if cls is Application:
            return self._application_changed(event)
        if cls is Node and _node_matters(event):
            return tuple(self._on_node.get(event.entry.name, ()))
        if cls is PersistentVolume and _volume_matters(event):
            return self._waiting(event.entry.obj["spec"]["node"]) | self._mounting(event.entry.name)
        return ()

    def _application_changed(self, event: Event) -> set[Key]:
        """Itself; and when it leaves room, those that wait for its node."""
        entry, key = event.entry, event.entry.key
        before = self._node_of.pop(key, "")
        self._on_node[before].discard(key)
        found: set[Key] = set()
        if event.type is EventType.DELETED:
            found |= self._waiting(before)
        else:
            self._index(entry)
            found.add(key)
            if event.previous is not None and _frees(event.previous.obj, entry.obj):
                found |= self._waiting(before)
        return found

    def _index(self, entry: Entry) -> None:
        node = entry.obj["spec"].get("nodeName") or ""
        self._node_of[entry.key] = node
        self._on_node[node].add(entry.key)

    def _applications(self, node: str) -> list[dict[str, Any]]:
        entries = (self._store.watch.get(Application, ns, name) for _, ns, name in self._on_node.get(node, ()))
        return [entry.obj for entry in entries if entry is not None]

    def _waiting(self, node: str) -> set[Key]:
        return {_key(a) for a in self._applications(node) if not placed(a)}

    def _mounting(self, volume: str) -> set[Key]:
        return {e.key for e in self._store.watch.list(Application) if volume in mounted(e.obj) and not placed(e.obj)}

    # What to do about it

    async def reconcile(self, key: Key) -> Round:
        entry = self._store.watch.get(Application, key[1], key[2])
        if entry is None:
            return DONE
        if entry.obj["metadata"].get("deletionTimestamp"):
            return await self._terminating(entry)
        await self._take_back(entry)
        verdict = self._judge(entry.obj)
        if stated(entry.obj, entry.uid, verdict) != entry.obj:
            written = await self._store.update(
                Application,
                entry.namespace,
                entry.name,
                lambda obj: stated(obj, entry.uid, verdict),
                WRITE,
                subresource="status",
            )
            if written.changed:
                self._announce(entry.obj, written.obj, verdict)
        return Round("" if verdict.scheduled else f"{verdict.reason}: {verdict.message}")

    def _judge(self, application: dict[str, Any]) -> Verdict:
        name = application["spec"].get("nodeName")
        if not name:
            message = "spec.nodeName is not set, and no scheduler chooses a node; set spec.nodeName to one"
            return Verdict(False, "Unscheduled", message)
        node = self._store.watch.get(Node, "", name)
        if node is None:
            message = f'node "{name}" is not registered; create it with manage.py createnodecert {name}'
            return Verdict(placed(application), "NodeNotRegistered", message)
        ready = find(node.obj, "Ready")
        if not placed(application):
            if ready is None or not (node.obj.get("status") or {}).get("allocatable"):
                return Verdict(False, "NodeNotReady", f'node "{name}" has not yet said what it has')
            found = obstacles(application, self._applications(name), node.obj, self._volumes(application, name))
            if found:
                return Verdict(False, found[0].reason, "; ".join(c.message for c in found))
        if ready is None or ready["status"] != "True":
            words = (ready or {}).get("message") or f'node "{name}" is not ready'
            return Verdict(True, "NodeNotReady", words)
        return Verdict(True, "WaitingForNode", f'node "{name}" has not yet reported')

    def _volumes(self, application: dict[str, Any], node: str) -> dict[str, dict[str, Any]]:
        names = mounted(application).union(*(mounted(a) for a in self._applications(node)))
        entries = {name: self._store.watch.get(PersistentVolume, "", name) for name in names}
        return {name: entry.obj for name, entry in entries.items() if entry is not None}

    async def _terminating(self, entry: Entry) -> Round:
        """What no node has ever had, or whose node was deleted, waits for no confirmation."""
        node = entry.obj["spec"].get("nodeName")
        registered = bool(node) and self._store.watch.get(Node, "", str(node)) is not None
        if registered and placed(entry.obj):
            return Round(f'waits until node "{node}" confirms that nothing is left')
        if NODE_FINALIZER not in (entry.obj["metadata"].get("finalizers") or []):
            return DONE

        def release(obj: dict[str, Any]) -> dict[str, Any]:
            meta = obj["metadata"]
            if meta["uid"] != entry.uid:
                return obj
            kept = [f for f in meta.get("finalizers") or [] if f != NODE_FINALIZER]
            return {**obj, "metadata": {**meta, "finalizers": kept}}

        await self._store.update(Application, entry.namespace, entry.name, release, WRITE)
        return DONE

    async def _take_back(self, entry: Entry) -> None:
        """An application that came back to a node need not be removed from it any more."""
        removal = f"{entry.uid}.{entry.obj['spec'].get('nodeName')}"
        if self._store.watch.get(NodeRemoval, "", removal) is not None:
            await self._store.delete(NodeRemoval, "", removal, DeleteOptions(user=SYSTEM))

    def _announce(self, before: dict[str, Any], after: dict[str, Any], verdict: Verdict) -> None:
        if placed(after) and not placed(before):
            self._record(after, "Normal", "Scheduled", f'placed on node "{after["spec"]["nodeName"]}"')
        elif not verdict.scheduled and (before.get("status") or {}).get("message") != verdict.message:
            self._record(after, "Warning", "FailedScheduling", verdict.message)


def stated(obj: dict[str, Any], uid: str, verdict: Verdict) -> dict[str, Any]:
    """The application with what the controller knows of it. Pure; the node's words stay while it runs there."""
    meta, stored = obj["metadata"], obj.get("status") or {}
    if meta["uid"] != uid or meta.get("deletionTimestamp"):
        return obj
    node = obj["spec"].get("nodeName") or ""
    conditions = stored.get("conditions") or []
    moved = stored.get("node", "") not in ("", node)
    if moved:  # what another node said of it is void
        stored = {"restartCount": stored.get("restartCount", 0)}
        conditions = []
    scheduled = condition(
        "Scheduled",
        "True" if verdict.scheduled else "False",
        "Scheduled" if verdict.scheduled else verdict.reason,
        f'on node "{node}"' if verdict.scheduled else verdict.message,
    )
    status = {**stored, "conditions": merge(conditions, [scheduled]), "node": node if verdict.scheduled else ""}
    phase, reason = stored.get("phase", "Pending"), stored.get("reason", "")
    # A report has the generation it speaks of: its PortConflict is a process of the host, and the node's to clear.
    is_nodes_word = verdict.scheduled and bool(stored.get("observedGeneration"))
    if phase == "Pending" and reason in WAITING and not is_nodes_word:
        status |= {"phase": "Pending", "reason": verdict.reason, "message": verdict.message}
    elif verdict.reason == "NodeNotRegistered" and phase in ("Pulling", "Starting", "Running"):
        status |= {"phase": "Unknown", "reason": verdict.reason, "message": verdict.message}
    return {**obj, "status": status}


def _key(application: dict[str, Any]) -> Key:
    return KIND, application["metadata"]["namespace"], application["metadata"]["name"]


def _frees(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether a change may make room for others: not a mere report of a running application."""
    finished = ("Succeeded", "Failed")
    done = [(o.get("status") or {}).get("phase") in finished for o in (before, after)]
    return bool(before["spec"] != after["spec"]) or done[0] != done[1]


def _node_matters(event: Event) -> bool:
    """Ready, capacity and existence matter; the rest of a node's reports do not."""
    if event.previous is None or event.type is EventType.DELETED:
        return True
    return _node_facts(event.previous.obj) != _node_facts(event.entry.obj)


def _node_facts(node: dict[str, Any]) -> tuple[Any, ...]:
    ready = find(node, "Ready") or {}
    return ready.get("status"), ready.get("message"), (node.get("status") or {}).get("allocatable")


def _volume_matters(event: Event) -> bool:
    if event.previous is None or event.type is EventType.DELETED:
        return True
    before, after = event.previous.obj, event.entry.obj
    deleted = [bool(o["metadata"].get("deletionTimestamp")) for o in (before, after)]
    return bool(before["spec"] != after["spec"]) or deleted[0] != deleted[1]
