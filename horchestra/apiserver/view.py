"""A kind as it is served: what the memory holds, and what is shown of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from horchestra.apimachinery.meta import APIObject
from horchestra.apimachinery.registry import Registry, Resource
from horchestra.storage.watch import Entry, Event, WatchCache

from . import pods


@dataclass(frozen=True, slots=True)
class View:
    """`project` makes what is shown of a stored entry (None: nothing is); without it the entry itself is shown."""

    stored: type[APIObject]
    shown: type[APIObject]
    project: Callable[[Entry], Entry | None] | None = None

    @property
    def resource(self) -> Resource:
        return self.shown.resource

    def get(self, cache: WatchCache, namespace: str, name: str) -> Entry | None:
        entry = cache.get(self.stored, namespace, name)
        return entry if entry is None or self.project is None else self.project(entry)

    def list(self, cache: WatchCache, namespace: str | None) -> Sequence[Entry]:
        entries = cache.list(self.stored, namespace)
        if self.project is None:
            return entries
        return [shown for entry in entries if (shown := self.project(entry)) is not None]

    def changes(self, event: Event) -> Iterator[Change]:
        """What a watcher of this view sees of an event. A projection with another uid is another object."""
        if self.project is None:
            gone = event.entry if event.type == "DELETED" else None
            yield Change(event.revision, event.previous or gone, None if gone else event.entry, gone)
            return
        new = None if event.type == "DELETED" else self.project(event.entry)
        old = self.project(event.previous) if event.previous else None
        if event.type == "DELETED" and old is None:
            old = self.project(event.entry)
        if old and new and old.uid != new.uid:
            yield Change(event.revision, old, None, old)
            yield Change(event.revision, None, new, None)
        elif old or new:
            yield Change(event.revision, old, new, old if new is None else None)


@dataclass(frozen=True, slots=True)
class Change:
    """From `old` to `new`, each None where there is nothing. `last` is the state to report when it went."""

    revision: int
    old: Entry | None
    new: Entry | None
    last: Entry | None


def views(registry: Registry) -> Iterator[View]:
    """Everything that is served, in the order in which clients resolve short names."""
    for cls in registry:
        yield View(cls, cls)
    applications = registry.route(*pods.APPLICATIONS)
    if applications is not None:
        yield View(applications, pods.Pod, pods.project)


def view(registry: Registry, group: str, version: str, plural: str) -> View | None:
    if (group, version, plural) == pods.ROUTE:
        applications = registry.route(*pods.APPLICATIONS)
        return None if applications is None else View(applications, pods.Pod, pods.project)
    cls = registry.route(group, version, plural)
    return None if cls is None else _plain(cls)


@lru_cache(maxsize=256)
def _plain(cls: type[APIObject]) -> View:
    return View(cls, cls)
