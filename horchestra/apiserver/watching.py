"""watch: what is there, then what happens, without loss or repetition.

Subscribers of one kind and namespace are handed the same batch of events; what a batch looks like on the wire is made
once per shape and kept with it, so that a thousand watchers with the same view cost one encoding and a thousand writes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from horchestra.apimachinery import codec
from horchestra.apimachinery.errors import StatusError
from horchestra.apimachinery.registry import Resource
from horchestra.storage.watch import Batch, Entry, Subscription, WatchCache

from . import freshness, table
from .metrics import WATCHERS
from .negotiation import Shape, shape
from .request import Request
from .response import PIECE, Stream
from .selection import Selection, selection
from .view import Change, View

Write = Callable[[bytes], Awaitable[None]]

LONGEST = (30 * 60, 60 * 60)
"""Seconds a watch lasts when the client names no timeout: a random time between the two, as in Kubernetes."""
BOOKMARK_EVERY = (50, 60)
_SETTLED = 0.001
"""Seconds; events already handed to a subscription are returned without any waiting."""
_INITIAL_END = {"k8s.io/initial-events-end": "true"}


class Watcher:
    def __init__(self, cache: WatchCache) -> None:
        self._cache = cache
        self._open: set[Subscription] = set()
        self._closing = False

    def close(self) -> None:
        """Ends every watch as if its time had come."""
        self._closing = True
        for subscription in tuple(self._open):
            subscription.close()

    async def watch(self, view: View, request: Request) -> Stream:
        """Raises StatusError for parameters that make no sense; what goes wrong later is an ERROR event."""
        chosen = selection(view, request)
        lines = Lines(view, request)
        initial, since = await self._start(request)
        bookmarks = request.flag("allowWatchBookmarks")
        ends_initial = bookmarks and request.flag("sendInitialEvents")
        timeout = request.number("timeoutSeconds") or random.uniform(*LONGEST)
        if request.expires is not None:
            timeout = min(timeout, max(request.expires - time.time(), 0))

        async def run(write: Write) -> None:
            entries = chosen.entries(self._cache) if initial else []
            at = self._cache.revision
            try:
                follow = self._cache.subscribe(view.stored, chosen.namespace, at if initial else since)
            except StatusError as error:
                await write(lines.error(error))
                return
            with self._registered(follow, request):
                for piece in _pieces(lines.added(entry) for entry in entries):
                    await write(piece)
                if ends_initial:
                    await write(lines.bookmark(at, _INITIAL_END))
                await self._follow(follow, chosen, lines, write, bookmarks, timeout)

        return Stream(run)

    async def _start(self, request: Request) -> tuple[bool, int | None]:
        """Whether to send what is there first, else the revision to follow from (None: from now on)."""
        text, wanted = request.param("resourceVersion"), freshness.revision(request)
        asked, match = request.param("sendInitialEvents"), request.param("resourceVersionMatch")
        if not asked and match:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            raise freshness.forbidden("resourceVersionMatch", why)
        if asked and match != "NotOlderThan":
            why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise freshness.forbidden("resourceVersionMatch", why)
        if asked and request.flag("sendInitialEvents"):
            await freshness.reached(self._cache, wanted)
            return True, None
        if text in ("", "0"):
            await freshness.reached(self._cache, wanted)
            return not asked, None
        if wanted is not None and wanted > self._cache.revision:
            await self._cache.caught_up()
        return False, wanted

    def _registered(self, follow: Subscription, request: Request) -> _Registration:
        return _Registration(self, follow, request)

    async def _follow(
        self,
        follow: Subscription,
        chosen: Selection,
        lines: Lines,
        write: Write,
        bookmarks: bool,
        seconds: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        end = loop.call_later(seconds, follow.close)
        next_bookmark = loop.time() + random.uniform(*BOOKMARK_EVERY) if bookmarks else float("inf")
        try:
            while True:
                batch: Batch | None = None
                try:
                    async with asyncio.timeout_at(None if not bookmarks else next_bookmark):
                        batch = await follow.next_batch()
                except TimeoutError:
                    await self._bookmark(follow, chosen, lines, write)
                    next_bookmark = loop.time() + random.uniform(*BOOKMARK_EVERY)
                    continue
                data = lines.batch(batch, chosen)
                if data:
                    await write(data)
        except StopAsyncIteration:
            return
        except StatusError as error:
            await write(lines.error(error))
        finally:
            end.cancel()

    async def _bookmark(self, follow: Subscription, chosen: Selection, lines: Lines, write: Write) -> None:
        # A subscription hands out at once whatever waits; so after one more look nothing up to `at` is outstanding.
        self._cache.subscribe(chosen.view.stored, chosen.namespace).close()
        at = self._cache.revision
        try:
            async with asyncio.timeout(_SETTLED):
                batch = await follow.next_batch()
        except TimeoutError:
            pass
        else:
            at = max(at, batch[-1].revision)
            data = lines.batch(batch, chosen)
            if data:
                await write(data)
        await write(lines.bookmark(at, None))


class _Registration:
    """While a watch is open: it ends with the client, the decision, the server."""

    def __init__(self, watcher: Watcher, follow: Subscription, request: Request) -> None:
        self._watcher = watcher
        self._follow = follow
        self._request = request
        route = request.route
        self._gauge = WATCHERS.labels("watch", route.group, route.plural)

    def __enter__(self) -> None:
        self._gauge.inc()
        self._watcher._open.add(self._follow)
        self._unsubscribe = self._request.withdrawn.subscribe(self._follow.close)
        self._gone = asyncio.get_running_loop().create_task(self._client_gone())
        if self._watcher._closing:
            self._follow.close()

    def __exit__(self, *error: object) -> None:
        self._gauge.dec()
        self._unsubscribe()
        self._gone.cancel()
        self._watcher._open.discard(self._follow)
        self._follow.close()

    async def _client_gone(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._follow.close()


class Lines:
    """Events of one view in one shape as they go over the wire."""

    def __init__(self, view: View, request: Request) -> None:
        self._view = view
        self._resource: Resource = view.resource
        self._shape = shape(request.header(b"accept"))
        self._include = table.include_object(request.param("includeObject"))
        self._key = f"{self._resource.qualified}:{self._shape}:{self._include}"
        self._plain = view.project is None and self._shape is Shape.OBJECT
        self._head = table.head(self._resource) if self._shape is Shape.TABLE else b""

    def batch(self, batch: Batch, chosen: Selection) -> bytes:
        """The lines of all events that concern the selection."""
        if not chosen.everything:
            return b"".join([line for change in self._changes(batch) if (line := self._selected(change, chosen))])
        if self._plain:
            return batch.lines
        made: bytes | None = batch.cache.get(self._key)
        if made is None:
            made = batch.cache[self._key] = b"".join([self._selected(c, chosen) for c in self._changes(batch)])
        return made

    def _changes(self, batch: Batch) -> Iterator[Change]:
        for event in batch:
            yield from self._view.changes(event)

    def _selected(self, change: Change, chosen: Selection) -> bytes:
        """A selector makes ADDED and DELETED of what comes to match or ceases to."""
        before, now = chosen.matches(change.old), chosen.matches(change.new)
        if now and change.new is not None:
            return self._line(b"MODIFIED" if before else b"ADDED", change.new)
        if before and change.old is not None:
            return self._line(b"DELETED", change.last or change.old, change.revision)
        return b""

    def added(self, entry: Entry) -> bytes:
        return self._line(b"ADDED", entry)

    def _line(self, kind: bytes, entry: Entry, revision: int | None = None) -> bytes:
        """`revision`: what resourceVersion a deletion reports, where that is not the object's own."""
        if revision is not None and revision != entry.revision:
            obj = entry.obj
            obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}
            entry = Entry(entry.cls, entry.namespace, entry.name, entry.uid, revision, codec.encode(obj), obj)
        return b'{"type":"%b","object":%b}\n' % (kind, self._object(entry))

    def _object(self, entry: Entry) -> bytes:
        match self._shape:
            case Shape.TABLE:
                metadata = b',"metadata":{"resourceVersion":"%d"},"rows":[' % entry.revision
                return (
                    self._head + metadata + table.row(self._resource, entry, self._include, datetime.now(UTC)) + b"]}"
                )
            case Shape.METADATA:
                return table.partial(entry.obj)
        return entry.body

    def bookmark(self, revision: int, annotations: dict[str, str] | None) -> bytes:
        metadata: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        resource = self._resource
        obj: dict[str, Any] = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        if self._shape is Shape.TABLE:
            encoded = codec.encode({"cells": [], "object": obj})
            body = b'%b,"metadata":{"resourceVersion":"%d"},"rows":[%b]}' % (self._head, revision, encoded)
        elif self._shape is Shape.METADATA:
            body = codec.encode({**obj, "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"})
        else:
            body = codec.encode(obj)
        return b'{"type":"BOOKMARK","object":%b}\n' % body

    def error(self, error: StatusError) -> bytes:
        return b'{"type":"ERROR","object":%b}\n' % codec.encode(error.status())


def _pieces(lines: Iterator[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= PIECE:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
