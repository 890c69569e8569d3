"""The statements the writer sends, on its own connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from horchestra.apimachinery.registry import Registry

from .entry import Entry, Event, EventType, Key
from .envelope import Envelope

CHANNEL = "horchestra_revision"
"""PostgreSQL's NOTIFY channel."""
_ROWS = 64
"""Rows per statement: each statement hands the interpreter's lock over once, so few of them are sent."""

_OBJECT_COLUMNS = ("resource", "namespace", "name", "uid", "revision", "body")
_REVISION_COLUMNS = ("id", "type", "resource", "namespace", "name", "uid", "created", "body", "previous")
_UPSERT = (
    " ON CONFLICT (resource, namespace, name) DO UPDATE SET "
    "uid = excluded.uid, revision = excluded.revision, body = excluded.body"
)


@dataclass(frozen=True, slots=True)
class Position:
    """The counter's row."""

    revision: int
    compacted: int
    lineage: str


class Database:
    """Reads and writes the tables in the transaction that the caller holds. One thread uses it."""

    def __init__(self, registry: Registry, envelope: Envelope, alias: str) -> None:
        self._registry = registry
        self._envelope = envelope
        self._alias = alias

    @property
    def connection(self) -> BaseDatabaseWrapper:
        return connections[self._alias]

    def position(self, *, lock: bool) -> Position:
        """`lock`: nobody else writes until the transaction ends (SQLite locks at BEGIN)."""
        suffix = " FOR UPDATE" if lock and self.connection.features.has_select_for_update else ""
        rows = self._rows("SELECT value, compacted, lineage FROM horchestra_counter WHERE id = 1" + suffix)
        return Position(*rows[0])

    def objects(self) -> Iterable[Entry]:
        """Everything that is stored, of the kinds that are registered."""
        for resource, namespace, name, uid, revision, blob in self._rows(
            f"SELECT {', '.join(_OBJECT_COLUMNS)} FROM horchestra_object"
        ):
            entry = self._entry((resource, namespace, name), uid, revision, blob)
            if entry is not None:
                yield entry

    def events(self, after: int, newest: Callable[[Key], Entry | None]) -> Iterator[tuple[int, int, Event | None]]:
        """(revision, milliseconds since the epoch, change) after a revision, in order; no change for kinds that are not
        registered. `newest`: the version before, if known; asked when the caller has taken the change before."""
        query = f"SELECT {', '.join(_REVISION_COLUMNS)} FROM horchestra_revision WHERE id > %s ORDER BY id"
        for revision, type, resource, namespace, name, uid, created, blob, before in self._rows(query, [after]):
            key = (resource, namespace, name)
            entry = self._entry(key, uid, revision, blob)
            previous = newest(key)
            if previous is None and before is not None:
                previous = self._entry(key, uid, 0, before)
            yield revision, created, Event(EventType(type), entry, previous) if entry is not None else None

    def store(self, events: Sequence[Event]) -> None:
        """Appends the changes to the log, brings the objects up to date, moves the counter."""
        created = time.time_ns() // 1_000_000
        newest: dict[Key, Event] = {}
        log = []
        for event in events:
            entry, key = event.entry, event.entry.key
            before = None if event.previous is None else self._sealed(event.previous)
            log.append((event.revision, event.type.value, *key, entry.uid, created, self._sealed(entry), before))
            newest[key] = event
        self._insert("horchestra_revision", _REVISION_COLUMNS, log)
        kept = [
            (*key, e.entry.uid, e.revision, self._sealed(e.entry))
            for key, e in newest.items()
            if e.type is not EventType.DELETED
        ]
        self._insert("horchestra_object", _OBJECT_COLUMNS, kept, _UPSERT)
        for key, event in newest.items():
            if event.type is EventType.DELETED:
                where = "resource = %s AND namespace = %s AND name = %s"
                self._run(f"DELETE FROM horchestra_object WHERE {where}", key)
        revision = events[-1].revision
        self._run("UPDATE horchestra_counter SET value = %s WHERE id = 1", [revision])
        if self.connection.vendor == "postgresql":
            self._run("SELECT pg_notify(%s, %s)", [CHANNEL, str(revision)])

    def compact(self, revision: int) -> None:
        """Forgets changes up to and including a revision."""
        self._run("DELETE FROM horchestra_revision WHERE id <= %s", [revision])
        self._run("UPDATE horchestra_counter SET compacted = %s WHERE id = 1 AND compacted < %s", [revision, revision])

    def _entry(self, key: Key, uid: str, revision: int, blob: Any) -> Entry | None:
        try:
            cls = self._registry.qualified(key[0])
        except KeyError:
            return None
        body = self._envelope.open("/".join(key), bytes(blob))
        return Entry(cls, key[1], key[2], uid, revision, body)

    def _sealed(self, entry: Entry) -> bytes:
        if not entry.cls.resource.encrypted:
            return entry.body
        return self._envelope.seal("/".join(entry.key), entry.body)

    def _insert(self, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]], suffix: str = "") -> None:
        one = "(" + ", ".join(["%s"] * len(columns)) + ")"
        for at in range(0, len(rows), _ROWS):
            part = rows[at : at + _ROWS]
            values = ", ".join([one] * len(part))
            names = ", ".join(columns)
            self._run(f"INSERT INTO {table} ({names}) VALUES {values}{suffix}", [v for row in part for v in row])

    def _run(self, sql: str, parameters: Sequence[Any]) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, parameters)

    def _rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            found: list[tuple[Any, ...]] = cursor.fetchall()
        return found
