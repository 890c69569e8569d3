"""One version of one object as memory holds it, and one change to it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import pydantic_core

from horchestra.apimachinery.meta import APIObject

Key = tuple[str, str, str]
"""(storage key of the kind, namespace, name)."""


class EventType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Entry:
    """An object version, encoded once and shared by all readers; nothing in it may be changed.

    `obj` is parsed from `body` when first asked for. `cache` is for what readers derive from this version
    (a table row, say): key to value.
    """

    __slots__ = ("_labels", "_obj", "body", "cache", "cls", "key", "name", "namespace", "revision", "uid")

    def __init__(
        self,
        cls: type[APIObject],
        namespace: str,
        name: str,
        uid: str,
        revision: int,
        body: bytes,
        obj: dict[str, Any] | None = None,
    ) -> None:
        self.cls = cls
        self.key: Key = (cls.resource.qualified, namespace, name)
        self.namespace = namespace
        self.name = name
        self.uid = uid
        self.revision = revision
        self.body = body
        self._obj = obj
        self._labels: dict[str, str] | None = None
        self.cache: dict[str, Any] = {}

    @property
    def obj(self) -> dict[str, Any]:
        """The JSON as Python values."""
        obj = self._obj
        if obj is None:
            obj = self._obj = pydantic_core.from_json(self.body)
        return obj

    @property
    def labels(self) -> dict[str, str]:
        labels = self._labels
        if labels is None:
            labels = self._labels = self.obj["metadata"].get("labels") or {}
        return labels

    def shrink(self) -> None:
        """Drops what can be made again from the body: superseded versions are kept long and seldom read."""
        self._obj = None
        self.cache.clear()

    def __repr__(self) -> str:
        return f"Entry({'/'.join(self.key)}@{self.revision})"


class Event:
    """A change. `previous` is the version before it (None for ADDED); of a DELETED event `entry` is the last state,
    with the revision of the deletion as its resourceVersion."""

    __slots__ = ("_line", "entry", "previous", "revision", "type")

    def __init__(self, type: EventType, entry: Entry, previous: Entry | None) -> None:
        self.type = type
        self.entry = entry
        self.previous = previous
        self.revision = entry.revision
        self._line: bytes | None = None

    @property
    def line(self) -> bytes:
        """The watch line, encoded once: `{"type":"ADDED","object":{...}}` and a newline."""
        if self._line is None:
            self._line = watch_line(self.type, self.entry.body)
        return self._line

    def __repr__(self) -> str:
        return f"Event({self.type} {'/'.join(self.entry.key)}@{self.revision})"


def watch_line(type: str, body: bytes) -> bytes:
    """One frame of a watch stream."""
    return b'{"type":"%b","object":%b}\n' % (type.encode(), body)


class Batch(list[Event]):
    """Events handed to a subscriber at once, in revision order. Subscribers of one kind and namespace share the same
    batch when they keep up: do not change it. `cache` is for what they derive from it."""

    __slots__ = ("_lines", "cache")

    def __init__(self, events: Iterable[Event] = ()) -> None:
        super().__init__(events)
        self._lines: bytes | None = None
        self.cache: dict[str, Any] = {}

    @property
    def lines(self) -> bytes:
        """All watch lines joined, once for all who share the batch."""
        if self._lines is None:
            self._lines = b"".join([event.line for event in self])
        return self._lines
