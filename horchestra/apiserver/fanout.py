"""From one subscription to everybody who watches a kind in a namespace.

A batch of events is encoded once for each shape and goes to every watcher of that shape as the same bytes, straight
into its connection as long as that has room. The more watchers there are, the longer events are gathered before they
go out, so that the cost of a second stays the same.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from horchestra.apimachinery.errors import StatusError
from horchestra.apimachinery.meta import APIObject
from horchestra.storage.watch import Batch, WatchCache

from .lines import Lines
from .selection import Selection

Write = Callable[[bytes], Awaitable[None]]
Push = Callable[[bytes], bool]
Scope = tuple[type[APIObject], str | None]
T = TypeVar("T")

GATHER = 100e-6
"""Seconds of gathering for each watcher: at 1,000 watchers 0.1 s."""
LONGEST_GATHER = 0.1
REST = 1.0
"""Time left to everything else, as a part of what telling everybody took."""
AT_ONCE = 100
"""Watchers written to before other requests get their turn."""
PENDING = 8 * 1024 * 1024
"""Bytes that wait for one slow client before it is told to list again."""
BACKLOG = 256 * 1024 * 1024
"""Bytes that wait for all slow clients together; beyond it those who are furthest behind are told so."""
DIRECT = 64 * 1024
"""Bytes that are handed to a connection at once; of what is larger, no connection holds more."""
BOOKMARK_EVERY = (50.0, 60.0)
_SETTLED = 0.001
"""Seconds; what a subscription was already handed is returned without any waiting."""
_SLOW = "the client was too slow to be told of every change; list again"


class Backlog:
    """What waits for slow clients, counted over all of them."""

    def __init__(self, most: int = BACKLOG) -> None:
        self._most = most
        self._sizes: dict[Member, int] = {}
        self._total = 0

    def changed(self, member: Member, size: int) -> None:
        self._total += size - self._sizes.pop(member, 0)
        if size:
            self._sizes[member] = size
        while self._total > self._most:
            max(self._sizes, key=self._sizes.__getitem__).cut_off()


class Member:
    """One watch. Everything after revision `since` is offered to it."""

    def __init__(
        self, chosen: Selection, lines: Lines, bookmarks: bool, push: Push | None, since: int, backlog: Backlog
    ) -> None:
        self.chosen = chosen
        self.lines = lines
        self.bookmarks = bookmarks
        self.since = since
        self._push = push
        self._backlog = backlog
        self._pending: deque[bytes] = deque()
        self._going = b""
        """What is being written."""
        self._size = 0
        """Of both."""
        self._wake = asyncio.Event()
        self._idle = False
        """Nothing waits: what comes may go straight into the connection."""
        self.ended = False
        self._error: StatusError | None = None

    def tell(self, batch: Batch) -> None:
        for piece in self.lines.batch(batch, self.chosen):
            self.offer(piece)

    def offer(self, data: bytes) -> None:
        if self.ended or not data:
            return
        if self._idle and self._push is not None and len(data) <= DIRECT and self._push(data):
            return
        self._idle = False
        self._pending.append(data)
        self._resize(len(data))
        if self._size > PENDING and len(self._pending) > 1:
            self.fall_behind()
        self._wake.set()

    def fall_behind(self) -> None:
        """Gives up what waits; the client is told to list again."""
        self._pending.clear()
        self._resize(len(self._going) - self._size)
        self.end(StatusError("Expired", _SLOW))

    def cut_off(self) -> None:
        """Gives up what is being written too: in the middle of a line the connection ends."""
        self.drop()
        self.end(StatusError("Expired", _SLOW))

    def drop(self) -> None:
        self._pending.clear()
        self._going = b""
        self._resize(-self._size)

    def _resize(self, by: int) -> None:
        self._size += by
        self._backlog.changed(self, self._size)

    def end(self, error: StatusError | None = None) -> None:
        """The watch ends once what waits is written; `error` is its last event."""
        if not self.ended:
            self.ended, self._error = True, error
            self._wake.set()

    async def pump(self, write: Write) -> None:
        """Writes what could not go out at once, until the end."""
        while True:
            while self._pending:
                self._going = self._next()
                await self._write(write)
            if self.ended:
                if self._error is not None:
                    await write(self.lines.error(self._error))
                return
            self._idle = True
            await self._wake.wait()
            self._wake.clear()

    def _next(self) -> bytes:
        """As much of what waits as goes out at once."""
        taken = [self._pending.popleft()]
        size = len(taken[0])
        while self._pending and size + len(self._pending[0]) <= DIRECT:
            taken.append(self._pending.popleft())
            size += len(taken[-1])
        return b"".join(taken)

    async def _write(self, write: Write) -> None:
        start, end = 0, len(self._going)
        while start < len(self._going):
            await write(self._going[start : start + DIRECT])
            start += DIRECT
        if start < end:
            raise ConnectionAbortedError(_SLOW)
        self._resize(-len(self._going))
        self._going = b""


class Fanout:
    """All watches of one kind in one namespace (or all). Lives while it has members."""

    def __init__(self, cache: WatchCache, scope: Scope) -> None:
        self._cache = cache
        self._scope = scope
        self._subscription = cache.subscribe(*scope)
        self._members: dict[Member, None] = {}
        self._task = asyncio.get_running_loop().create_task(self._run())
        self.over = False
        """Its subscription ended; a new watch needs another one."""

    def join(self, member: Member) -> None:
        self._members[member] = None

    def leave(self, member: Member) -> bool:
        """Whether nobody is left; then it has ended."""
        self._members.pop(member, None)
        if not self._members:
            self.over = True
            self._subscription.close()
            self._task.cancel()
        return self.over

    def end(self, error: StatusError | None = None) -> None:
        self.over = True
        for member in tuple(self._members):
            member.end(error)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_bookmark = loop.time() + random.uniform(*BOOKMARK_EVERY)
        try:
            while True:
                batch = await _within(next_bookmark, self._subscription.next_batch())
                if batch is None:
                    await self._bookmark()
                    next_bookmark = loop.time() + random.uniform(*BOOKMARK_EVERY)
                    continue
                started = loop.time()
                await self._broadcast(batch)
                took = loop.time() - started
                gather = min(GATHER * len(self._members), LONGEST_GATHER)
                await asyncio.sleep(max(gather - took, took * REST))
        except StatusError as error:
            self.end(error)
        except StopAsyncIteration:
            self.end()

    async def _broadcast(self, batch: Batch) -> None:
        newest = batch[-1].revision
        members = tuple(self._members)
        for position, member in enumerate(members):
            if position and not position % AT_ONCE:
                await asyncio.sleep(0)
            if member.ended:  # what is left of it is up to its client, and may take long
                continue
            if member.since < batch[0].revision:
                member.tell(batch)
            elif member.since < newest:
                unseen = Batch([event for event in batch if event.revision > member.since])
                member.tell(unseen)

    async def _bookmark(self) -> None:
        """Tells how far everybody has been told everything."""
        # A new subscription makes the cache hand out what it gathers: one more look, and nothing up to `at` is missing.
        self._cache.subscribe(*self._scope).close()
        at = self._cache.revision
        batch = await _within(asyncio.get_running_loop().time() + _SETTLED, self._subscription.next_batch())
        if batch is not None:
            at = max(at, batch[-1].revision)
            await self._broadcast(batch)
        for member in tuple(self._members):
            if member.bookmarks and member.since <= at:
                member.offer(member.lines.bookmark(at, None))


async def _within(deadline: float, wanted: Awaitable[T]) -> T | None:
    try:
        async with asyncio.timeout_at(deadline):
            return await wanted
    except TimeoutError:
        return None
