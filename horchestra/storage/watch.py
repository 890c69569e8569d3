"""Every object in memory, and who is told when one changes. Only the event loop touches it.

Fed by the writer after COMMIT, in revision order. Readers get what is committed; `caught_up()` is for reads that must
see what any replica committed before.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from heapq import merge
from operator import attrgetter
from typing import Self

from horchestra.apimachinery.errors import StatusError
from horchestra.apimachinery.meta import APIObject
from horchestra.apimachinery.selectors import FieldSelector, LabelSelector

from .collection import Accept, Collection
from .entry import Batch, Entry, Event, EventType

__all__ = ["Batch", "Entry", "Event", "EventType", "Subscription", "WatchCache"]

QUEUE = 4096
"""Events a subscriber may lag behind before it is closed and must list again."""
_TICK = 0.05
"""Longest time in seconds that events are gathered before they are handed out."""
_TICK_PER_SUBSCRIBER = 0.00005
_FEW = 4
"""A label carried by fewer than one in so many objects is looked up by index, else all are scanned."""
_HANDFUL = 200
"""Matches that are joined anew for each list; the encoding of more is kept for the next."""

Scope = tuple[str | None, str | None]
"""(storage key of the kind or None for all, namespace or None for all)."""


class Subscription:
    """Events of one scope from a revision on: what was missed first, then what happens, without loss or repetition.

    Either every event is delivered or the subscription ends with StatusError Expired.
    """

    def __init__(self, cache: WatchCache, scope: Scope, replay: Sequence[Event], limit: int) -> None:
        self._cache = cache
        self.scope = scope
        self._limit = limit
        self._batches: list[Batch] = [Batch(replay)] if replay else []
        self._pending = 0
        self._ready = asyncio.Event()
        self._ended: StatusError | None = None
        if replay:
            self._ready.set()

    async def next_batch(self) -> Batch:
        """Waits for events. Raises StatusError Expired when they can no longer all be delivered, StopAsyncIteration
        after close()."""
        await self._ready.wait()
        if self._batches:
            batches, self._batches = self._batches, []
            self._pending = 0
            if self._ended is None:
                self._ready.clear()
            return batches[0] if len(batches) == 1 else Batch([e for batch in batches for e in batch])
        if self._ended is not None:
            raise self._ended
        raise StopAsyncIteration

    def __aiter__(self) -> Self:
        self._current: list[Event] = []
        return self

    async def __anext__(self) -> Event:
        while not self._current:
            self._current = (await self.next_batch())[::-1]
        return self._current.pop()

    def close(self) -> None:
        """Ends it from either side; harmless when repeated."""
        self._cache.forget(self)
        self._batches.clear()
        self._ready.set()

    def offer(self, batch: Batch) -> None:
        if self._pending and self._pending + len(batch) > self._limit:
            self.expire("the reader was too slow to be told of every change; list again")
            return
        self._batches.append(batch)
        self._pending += len(batch)
        self._ready.set()

    def expire(self, message: str) -> None:
        self._ended = StatusError("Expired", message)
        self.close()


class WatchCache:
    def __init__(self) -> None:
        self.revision = 0
        """The newest revision in memory: the resourceVersion of every list."""
        self._compacted = 0
        self._collections: dict[str, Collection] = {}
        self._logs: dict[str, list[Event]] = {}
        """Per kind, in revision order, since the compacted revision."""
        self._subscriptions: dict[Scope, set[Subscription]] = {}
        self._subscribers = 0
        self._undelivered: list[Event] = []
        self._tick: asyncio.TimerHandle | None = None
        self._quiet_until = 0.0
        self._catch_up: Callable[[], Awaitable[int]] | None = None

    # Reading

    def get(self, cls: type[APIObject], namespace: str, name: str) -> Entry | None:
        return self._collection(cls).get(namespace, name)

    def list(
        self,
        cls: type[APIObject],
        namespace: str | None = None,
        labels: LabelSelector | None = None,
        fields: FieldSelector | None = None,
    ) -> Sequence[Entry]:
        """By (namespace, name); a snapshot that later writes do not change. `namespace` None is all of them."""
        collection = self._collection(cls)
        found = self._indexed(collection, namespace, labels, fields, len(collection) // _FEW)
        return found if found is not None else collection.entries(namespace, _accept(labels, fields))

    def list_body(
        self,
        cls: type[APIObject],
        namespace: str | None = None,
        labels: LabelSelector | None = None,
        fields: FieldSelector | None = None,
    ) -> Sequence[bytes]:
        """The encoded list (`ApplicationList`, every match, no paging) in pieces to be sent one after another.
        The pieces are shared between calls and hold until an object in them changes."""
        collection = self._collection(cls)
        accept = _accept(labels, fields)
        pieces: Sequence[bytes]
        if accept is None:
            pieces = collection.bodies(namespace)
        elif (found := self._indexed(collection, namespace, labels, fields, _HANDFUL)) is not None:
            pieces = [b",".join([e.body for e in found])] if found else []
        else:
            pieces = collection.matches(namespace, accept, (labels, fields))
        return list_pieces(cls, self.revision, pieces)

    async def caught_up(self) -> int:
        """Waits until memory holds everything committed before the call, by any replica; the revision reached.
        Raises StatusError ServiceUnavailable when the database does not answer."""
        if self._catch_up is None:
            return self.revision
        return await self._catch_up()

    # Watching

    def subscribe(
        self,
        cls: type[APIObject] | None,
        namespace: str | None = None,
        since: int | None = None,
        limit: int = QUEUE,
    ) -> Subscription:
        """Changes after revision `since` (None: from now on) of one kind, or of all. Raises StatusError Expired when
        the history no longer reaches back that far, or `since` is a revision that does not exist yet (with replicas,
        await caught_up() before)."""
        kind = None if cls is None else cls.resource.qualified
        replay: Sequence[Event] = ()
        if since is not None:
            if since < self._compacted:
                raise StatusError("Expired", f"too old resource version: {since} ({self._compacted})")
            if since > self.revision:
                message = f"resource version {since} is newer than the newest known, {self.revision}; list again"
                raise StatusError("Expired", message)
            replay = self._since(kind, namespace, since)
        self._flush()
        subscription = Subscription(self, (kind, namespace), replay, limit)
        self._subscriptions.setdefault(subscription.scope, set()).add(subscription)
        self._subscribers += 1
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """Called by Subscription.close()."""
        members = self._subscriptions.get(subscription.scope, set())
        if subscription in members:
            members.remove(subscription)
            self._subscribers -= 1
            if not members:
                del self._subscriptions[subscription.scope]

    # Feeding: only the store calls these

    def reset(self, entries: Iterable[Entry], history: Iterable[Event], revision: int, compacted: int) -> None:
        """Starts over: at start, and when the database turns out to be another one."""
        for members in tuple(self._subscriptions.values()):
            for subscription in tuple(members):
                subscription.expire("the data was restored or replaced; list again")
        self._undelivered.clear()
        self._collections.clear()
        self._logs.clear()
        for entry in entries:
            self._collection(entry.cls).put(entry)
        for event in history:
            self._logs.setdefault(event.entry.cls.resource.qualified, []).append(event)
        self.revision, self._compacted = revision, compacted

    def apply(self, events: Sequence[Event]) -> None:
        """Takes committed changes in revision order and tells subscribers: at once when it was quiet, else gathered
        for up to 50 ms when there are very many of them."""
        for event in events:
            entry = event.entry
            collection = self._collection(entry.cls)
            if event.type is EventType.DELETED:
                collection.remove(entry.namespace, entry.name)
            else:
                collection.put(entry)
            if event.previous is not None:
                event.previous.shrink()
            self._logs.setdefault(entry.cls.resource.qualified, []).append(event)
            self.revision = event.revision
        if not self._subscribers:
            return
        self._undelivered.extend(events)
        if self._tick is None:
            loop = asyncio.get_running_loop()
            self._tick = loop.call_at(max(self._quiet_until, loop.time()), self._flush)

    def compact(self, revision: int) -> None:
        """Forgets changes up to and including `revision`."""
        self._compacted = max(self._compacted, revision)
        for log in self._logs.values():
            del log[: bisect_right(log, revision, key=_revision)]

    def close(self) -> None:
        """Ends every subscription."""
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        for members in tuple(self._subscriptions.values()):
            for subscription in tuple(members):
                subscription.close()

    def connect(self, catch_up: Callable[[], Awaitable[int]] | None) -> None:
        """How to learn what other replicas committed; None when there are none."""
        self._catch_up = catch_up

    # Inside

    def _collection(self, cls: type[APIObject]) -> Collection:
        key = cls.resource.qualified
        found = self._collections.get(key)
        if found is None:
            found = self._collections[key] = Collection()
        return found

    def _since(self, kind: str | None, namespace: str | None, since: int) -> Sequence[Event]:
        logs = self._logs.values() if kind is None else [self._logs.get(kind, [])]
        tails = [log[bisect_right(log, since, key=_revision) :] for log in logs]
        events = tails[0] if len(tails) == 1 else list(merge(*tails, key=_revision))
        return events if namespace is None else [e for e in events if e.entry.namespace == namespace]

    def _flush(self) -> None:
        """Hands out what was gathered, the same batch to all of one scope."""
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        if not self._undelivered:
            return
        events, self._undelivered = self._undelivered, []
        self._quiet_until = asyncio.get_running_loop().time() + min(_TICK, _TICK_PER_SUBSCRIBER * self._subscribers)
        for (kind, namespace), members in tuple(self._subscriptions.items()):
            batch = Batch(
                [
                    e
                    for e in events
                    if (kind is None or e.entry.cls.resource.qualified == kind)
                    and (namespace is None or e.entry.namespace == namespace)
                ]
            )
            if batch:
                for subscription in tuple(members):
                    subscription.offer(batch)

    def _indexed(
        self,
        collection: Collection,
        namespace: str | None,
        labels: LabelSelector | None,
        fields: FieldSelector | None,
        most: int,
    ) -> Sequence[Entry] | None:
        """Matches found through the label index, or None when it names more than `most`."""
        wanted = labels.equalities() if labels is not None else []
        if not wanted:
            return None
        candidates = min((collection.labelled(*label) for label in wanted), key=len)
        if len(candidates) > most:
            return None
        accept = _accept(labels, fields)
        assert accept is not None
        keys = sorted(k for k, e in candidates.items() if (namespace is None or k[0] == namespace) and accept(e))
        return [candidates[key] for key in keys]


_revision = attrgetter("revision")


def _accept(labels: LabelSelector | None, fields: FieldSelector | None) -> Accept | None:
    if labels is not None and not labels.requirements:
        labels = None
    if fields is not None and not fields.terms:
        fields = None
    if labels is not None and fields is not None:
        return lambda e: labels.matches(e.labels) and fields.matches(e.obj)
    if labels is not None:
        equal = labels.equalities()
        if len(equal) == len(labels.requirements) == 1:
            key, value = equal[0]
            return lambda e: e.labels.get(key) == value
        return lambda e: labels.matches(e.labels)
    if fields is not None:
        return lambda e: fields.matches(e.obj)
    return None


def list_pieces(cls: type[APIObject], revision: int, items: Sequence[bytes]) -> list[bytes]:
    """A list body around items that are each one or more objects joined with commas."""
    r = cls.resource
    metadata = f'{{"resourceVersion":"{revision}"}}'
    pieces = [f'{{"kind":"{r.kind}List","apiVersion":"{r.api_version}","metadata":{metadata},"items":['.encode()]
    for at, item in enumerate(items):
        if at:
            pieces.append(b",")
        pieces.append(item)
    pieces.append(b"]}")
    return pieces
