"""The database's content as the writer sees it, uncommitted writes of its group included.

Admission reads here, never from the watch memory: the writer holds the counter's row lock and has brought this up to
the counter's value, so it equals what queries in the transaction would return. Only the writer's thread uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from pydantic import ValidationError

from horchestra.apimachinery.admission import Reference
from horchestra.apimachinery.meta import APIObject

from .entry import Entry, Event, EventType, Key

References = tuple[Reference, ...]
_K = TypeVar("_K")
_NOBODY: dict[Key, Entry] = {}
_NOBODY_NAMED: dict[str, Entry] = {}
_NOTHING: dict[str, dict[str, Entry]] = {}
_Place = tuple[str, str, str, str]
"""A target's key and a part of it; "" is the whole."""
_Undo = tuple[Key, Entry | None, References]


class State:
    def __init__(self) -> None:
        self.revision = 0
        self._objects: dict[str, dict[str, dict[str, Entry]]] = {}
        self._references: dict[Key, References] = {}
        self._referrers: dict[_Place, dict[Key, Entry]] = {}
        self._holders: dict[Key, dict[Key, Entry]] = {}
        self._uids: dict[str, Key] = {}
        self._owned: dict[str, dict[Key, Entry]] = {}
        self._journal: list[_Undo | int] = []

    # Reading

    def get(self, key: Key) -> Entry | None:
        resource, namespace, name = key
        return self._objects.get(resource, _NOTHING).get(namespace, _NOBODY_NAMED).get(name)

    def entries(self, resource: str, namespace: str | None = None) -> list[Entry]:
        by_namespace = self._objects.get(resource, {})
        if namespace is not None:
            return list(by_namespace.get(namespace, {}).values())
        return [entry for entries in by_namespace.values() for entry in entries.values()]

    def all(self) -> Iterator[Entry]:
        for resource in self._objects:
            yield from self.entries(resource)

    def references(self, key: Key) -> References:
        return self._references.get(key, ())

    def referrers(self, target: Key, part: str = "") -> list[Entry]:
        """Objects that name the target, or a part of it; itself not."""
        return [entry for key, entry in self._referrers.get((*target, part), _NOBODY).items() if key != target]

    def held(self, target: Key) -> bool:
        """Whether another object holds the target (Reference.holds)."""
        return any(key != target for key in self._holders.get(target, _NOBODY))

    def by_uid(self, uid: str) -> Entry | None:
        key = self._uids.get(uid)
        return None if key is None else self.get(key)

    def dependents(self, uid: str) -> list[Entry]:
        """Objects that name the uid in ownerReferences."""
        return list(self._owned.get(uid, _NOBODY).values())

    # Writing

    def put(self, entry: Entry, references: References) -> None:
        key = entry.key
        self._journal.append((key, self.get(key), self.references(key)))
        self._set(key, entry, references)

    def remove(self, key: Key) -> None:
        self._journal.append((key, self.get(key), self.references(key)))
        self._set(key, None, ())

    def load(self, entry: Entry) -> None:
        """An object as found in the database."""
        self._set(entry.key, entry, references_of(entry))

    def take(self, event: Event) -> None:
        """A change that somebody else committed."""
        if event.type is EventType.DELETED:
            self._set(event.entry.key, None, ())
        else:
            self.load(event.entry)

    def next_revision(self) -> int:
        self._journal.append(self.revision)
        self.revision += 1
        return self.revision

    def mark(self) -> int:
        """A savepoint for undo()."""
        return len(self._journal)

    def undo(self, mark: int = 0) -> None:
        """Back to the savepoint."""
        while len(self._journal) > mark:
            step = self._journal.pop()
            if isinstance(step, int):
                self.revision = step
            else:
                self._set(*step)

    def commit(self) -> None:
        """What was written stays."""
        self._journal.clear()

    def _set(self, key: Key, entry: Entry | None, references: References) -> None:
        self._forget(key)
        if entry is None:
            return
        resource, namespace, name = key
        self._objects.setdefault(resource, {}).setdefault(namespace, {})[name] = entry
        self._uids[entry.uid] = key
        if references:
            self._references[key] = references
            for place in _places(references):
                self._referrers.setdefault(place, {})[key] = entry
            for target in held_by(references):
                self._holders.setdefault(target, {})[key] = entry
        for uid in owner_uids(entry):
            self._owned.setdefault(uid, {})[key] = entry

    def _forget(self, key: Key) -> None:
        resource, namespace, name = key
        entry = self._objects.get(resource, _NOTHING).get(namespace, _NOBODY_NAMED).pop(name, None)
        if entry is None:
            return
        self._uids.pop(entry.uid, None)
        references = self._references.pop(key, ())
        for place in _places(references):
            _discard(self._referrers, place, key)
        for target in held_by(references):
            _discard(self._holders, target, key)
        for uid in owner_uids(entry):
            _discard(self._owned, uid, key)


def lens_of(entry: Entry) -> APIObject | None:
    """The typed object, or None when it was stored under rules it no longer meets."""
    try:
        return entry.cls.model_validate_json(entry.body)
    except ValidationError:
        return None


def references_of(entry: Entry) -> References:
    lens = lens_of(entry)
    return () if lens is None else tuple(lens.references())


def held_by(references: Iterable[Reference]) -> set[Key]:
    """Targets that stay while these references exist."""
    return {(r.target, r.namespace, r.name) for r in references if r.holds}


def _places(references: Iterable[Reference]) -> set[_Place]:
    return {(r.target, r.namespace, r.name, r.part) for r in references}


def owner_uids(entry: Entry) -> set[str]:
    return {owner["uid"] for owner in entry.obj["metadata"].get("ownerReferences") or ()}


def _discard(index: dict[_K, dict[Key, Entry]], at: _K, key: Key) -> None:
    members = index.get(at)
    if members is not None:
        members.pop(key, None)
        if not members:
            del index[at]
