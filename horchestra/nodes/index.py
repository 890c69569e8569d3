"""Which objects concern which node: kept current from the watch, so that a change is looked at by that node alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from horchestra.apimachinery.meta import APIObject
from horchestra.kinds.application import Application
from horchestra.kinds.configmap import ConfigMap
from horchestra.kinds.noderemoval import NodeRemoval
from horchestra.kinds.persistentvolume import PersistentVolume
from horchestra.kinds.secret import Secret
from horchestra.storage.watch import Entry, Event, EventType, WatchCache

_VALUES: dict[str, type[APIObject]] = {"secrets": Secret, "configmaps": ConfigMap}
_OF_A_NODE = (Application, PersistentVolume, NodeRemoval)

Key = tuple[str, str, str]
"""(storage key of the kind, namespace, name)."""


class Target(NamedTuple):
    """A Secret or ConfigMap that an application names."""

    kind: str
    namespace: str
    name: str


class NodeIndex:
    """Applications, volumes and removals by node; Secrets and ConfigMaps by the applications that name them."""

    def __init__(self, watch: WatchCache) -> None:
        self._watch = watch
        self._entries: dict[Key, Entry] = {}
        self._on_node: dict[str, set[Key]] = defaultdict(set)
        self._by_uid: dict[str, Entry] = {}
        self._named_by: dict[Target, set[str]] = defaultdict(set)
        self.reload()

    def reload(self) -> None:
        """Start over from what the watch holds."""
        for mapping in (self._entries, self._on_node, self._by_uid, self._named_by):
            mapping.clear()
        for cls in _OF_A_NODE:
            for entry in self._watch.list(cls):
                self._put(entry)

    # Reading

    def applications(self, node: str) -> list[Entry]:
        """Every application whose spec names the node, by namespace and name."""
        return self._of(node, Application.resource.qualified)

    def volumes(self, node: str) -> list[Entry]:
        return self._of(node, PersistentVolume.resource.qualified)

    def removals(self, node: str) -> list[Entry]:
        return self._of(node, NodeRemoval.resource.qualified)

    def application(self, uid: str) -> Entry | None:
        return self._by_uid.get(uid)

    def leaving(self, node: str, uid: str) -> bool:
        """Whether the node has been, or is about to be, told to remove what has this uid."""
        entry = self._entries.get((NodeRemoval.resource.qualified, "", f"{uid}.{node}"))
        # Names of nodes may hold dots: "x.a" on node "b" and "x" on node "a.b" read the same.
        return entry is not None and entry.obj["spec"]["node"] == node and entry.obj["spec"]["uid"] == uid

    def get(self, target: Target) -> dict[str, Any] | None:
        """The Secret or ConfigMap, as stored."""
        entry = self._watch.get(_VALUES[target.kind], target.namespace, target.name)
        return None if entry is None else entry.obj

    def _of(self, node: str, kind: str) -> list[Entry]:
        return [self._entries[key] for key in sorted(self._on_node.get(node, ())) if key[0] == kind]

    # Following the watch

    def apply(self, events: Iterable[Event]) -> set[str]:
        """Take changes; returns the nodes whose desired state may differ now. A status report makes none differ."""
        dirty: set[str] = set()
        for event in events:
            entry = event.entry
            if entry.cls.resource.qualified in _VALUES:
                uids = self._named_by.get(Target(*entry.key), ())
                dirty |= {node_of(self._by_uid[uid].obj) for uid in uids}
            elif entry.cls in _OF_A_NODE:
                dirty |= self._changed(event)
        return dirty

    def _changed(self, event: Event) -> set[str]:
        entry, before = event.entry, self._entries.get(event.entry.key)
        if before is not None:
            self._remove(before)
        if event.type is not EventType.DELETED:
            self._put(entry)
            if before is not None and _what_matters(before) == _what_matters(entry):
                return set()
        nodes = {node_of(entry.obj)} if before is None else {node_of(entry.obj), node_of(before.obj)}
        return nodes - {""}

    def _put(self, entry: Entry) -> None:
        self._entries[entry.key] = entry
        if node := node_of(entry.obj):
            self._on_node[node].add(entry.key)
        if entry.cls is Application:
            self._by_uid[entry.uid] = entry
            for target in targets(entry):
                self._named_by[target].add(entry.uid)

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.key]
        self._on_node[node_of(entry.obj)].discard(entry.key)
        if entry.cls is Application:
            del self._by_uid[entry.uid]
            for target in targets(entry):
                users = self._named_by[target]
                users.discard(entry.uid)
                if not users:
                    del self._named_by[target]


def targets(entry: Entry) -> frozenset[Target]:
    """Secrets and ConfigMaps that an application names."""
    found: frozenset[Target] | None = entry.cache.get("nodes.targets")
    if found is None:
        references = Application.model_validate(entry.obj).references()
        found = frozenset(Target(r.target, r.namespace, r.name) for r in references if r.target in _VALUES)
        entry.cache["nodes.targets"] = found
    return found


def node_of(obj: dict[str, Any]) -> str:
    """The node an application, volume or removal names, or ""."""
    spec = obj["spec"]
    return str((spec.get("nodeName") or "") if obj["kind"] == "Application" else spec["node"])


def placed(application: dict[str, Any]) -> bool:
    """Whether the controller let the application onto the node that its spec names (condition Scheduled)."""
    status = application.get("status") or {}
    node = application["spec"].get("nodeName")
    return (
        bool(node)
        and status.get("node") == node
        and any(c["type"] == "Scheduled" and c["status"] == "True" for c in status.get("conditions") or [])
    )


def _what_matters(entry: Entry) -> tuple[object, ...]:
    """What a node is told of an object."""
    meta = entry.obj["metadata"]
    return (
        entry.uid,
        meta.get("generation"),
        meta.get("annotations"),
        meta.get("deletionTimestamp"),
        meta.get("deletionGracePeriodSeconds"),
        meta.get("finalizers"),
        entry.obj["spec"],
        entry.cls is Application and placed(entry.obj),
    )
