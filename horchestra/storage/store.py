"""The one door to the data: every write of kubectl, dashboard, agents and controllers goes through here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from django.conf import settings
from django.db import connections

from horchestra.apimachinery.errors import StatusError
from horchestra.apimachinery.meta import APIObject
from horchestra.apimachinery.registry import Registry

from .compaction import HISTORY, History
from .database import Database
from .envelope import Envelope
from .options import DeleteOptions, WriteOptions, Written
from .replicas import Listener
from .transaction import Change, Transaction
from .watch import WatchCache
from .writer import Job, LoopClosed, News, Writer

__all__ = ["DeleteOptions", "Store", "Transaction", "WriteOptions", "Written"]

T = TypeVar("T")

WAITING = 10_000
"""Writes that may wait; more are refused with TooManyRequests."""


class Store:
    """Give it the registry and start() it on the event loop; every method is called from that loop.

    A write returns after COMMIT, when `watch` holds it. Cancelling the caller does not take a write back."""

    def __init__(
        self,
        registry: Registry,
        *,
        data_dir: Path | None = None,
        history: float = HISTORY,
        alias: str = "default",
    ) -> None:
        """`data_dir`: where secret.key is (default: settings.DATA_DIR); `history`: seconds that changes can be watched
        from; `alias`: Django's name of the database."""
        self.registry = registry
        self.watch = WatchCache()
        self._data_dir = data_dir or cast("Path", settings.DATA_DIR)
        self._history = history
        self._alias = alias
        self._lineage = ""
        self._waiting = 0
        self._refreshing: asyncio.Future[int] | None = None
        self._writer: Writer | None = None
        self._listener: Listener | None = None
        self._started: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Fills memory from the migrated database and starts the writer. Raises EnvelopeError, DatabaseError."""
        loop = asyncio.get_running_loop()
        self._started = loop.create_future()
        envelope = await asyncio.to_thread(Envelope.load_or_create, self._data_dir / "secret.key")
        replicas = connections.settings[self._alias]["ENGINE"].endswith("postgresql")

        def deliver(news: News) -> None:
            try:
                loop.call_soon_threadsafe(self._take, news)
            except RuntimeError:
                raise LoopClosed from None

        self._writer = Writer(
            self.registry,
            Database(self.registry, envelope, self._alias),
            History(self._history),
            deliver,
            replicas,
        )
        self._writer.start()
        try:
            await self._started
        except BaseException:
            self._writer.stop()
            raise
        if replicas:
            self.watch.connect(self._catch_up)
            self._listener = Listener(self._alias, self._look)
            self._listener.start()

    async def close(self) -> None:
        """Finishes queued writes and ends all subscriptions."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if self._listener is not None:
            await asyncio.to_thread(self._listener.stop)
        writer.stop()
        await asyncio.to_thread(writer.join)
        await asyncio.sleep(0)
        self.watch.close()

    @property
    def lineage(self) -> str:
        """Made with the database, and anew after a restore."""
        return self._lineage

    async def create(self, cls: type[APIObject], obj: dict[str, Any], options: WriteOptions) -> Written:
        """Takes over `obj`; `metadata.namespace` is set by the caller. Raises StatusError AlreadyExists, Invalid,
        BadRequest, NotFound or Forbidden (namespace), and what the kind's `admit` raises."""
        return await self.transaction(lambda t: t.create(cls, obj, options))

    async def update(
        self,
        cls: type[APIObject],
        namespace: str,
        name: str,
        change: Change,
        options: WriteOptions,
        *,
        subresource: str = "",
    ) -> Written:
        """`change` gets a private copy of the current JSON, in the writer's thread, and returns the new one; a
        resourceVersion or uid in it is a precondition. With subresource "status" only status is taken, else status is
        kept. Nothing changed: no revision, no event. Raises StatusError NotFound, Conflict, Invalid, BadRequest."""
        return await self.transaction(
            lambda t: t.update(cls, namespace, name, change, options, subresource=subresource)
        )

    async def delete(self, cls: type[APIObject], namespace: str, name: str, options: DeleteOptions) -> Written:
        """Gone, or Terminating while finalizers are left. Raises StatusError NotFound, Conflict."""
        return await self.transaction(lambda t: t.delete(cls, namespace, name, options))

    async def transaction(self, fn: Callable[[Transaction], T]) -> T:
        """Runs `fn` in the writer's thread: all its writes are committed together or not at all. `fn` must not wait for
        anything. Raises what `fn` raises, and StatusError ServiceUnavailable, Timeout, TooManyRequests."""
        if self._writer is None:
            raise StatusError("ServiceUnavailable", "the store is not running")
        if self._waiting >= WAITING:
            raise StatusError(
                "TooManyRequests", f"{self._waiting} writes are waiting for the database; try again later"
            )
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting += 1
        self._writer.submit(Job(fn, future))
        return await future

    # Inside

    def _take(self, news: News) -> None:
        """On the loop, in commit order: memory first, then those who wait."""
        if news.reset is not None:
            entries, history, position = news.reset
            self._lineage = position.lineage
            self.watch.reset(entries, history, position.revision, position.compacted)
        if news.events:
            self.watch.apply(news.events)
        if news.compacted is not None:
            self.watch.compact(news.compacted)
        for job in news.jobs:
            self._answer(job, news.revision)
        if self._started is not None and not self._started.done():
            if news.failure is not None:
                self._started.set_exception(news.failure)
            else:
                self._started.set_result(None)

    def _answer(self, job: Job, revision: int) -> None:
        future = job.future
        if future is None:
            return
        if job.run is not None:
            self._waiting -= 1
        if future.done():
            return
        if job.error is not None:
            future.set_exception(job.error)
        else:
            future.set_result(job.result if job.run is not None else revision)

    async def _catch_up(self) -> int:
        """One look at the counter for all who wait for one that has not begun."""
        if self._writer is None:
            raise StatusError("ServiceUnavailable", "the store is not running")
        if self._refreshing is None:
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._refreshing = future
            self._writer.submit(Job(None, future))
            asyncio.get_running_loop().call_soon(self._begun)
        return await asyncio.shield(self._refreshing)

    def _begun(self) -> None:
        self._refreshing = None

    def _look(self, revision: int | None) -> None:
        """In the listener's thread: somebody committed, perhaps this replica itself."""
        writer = self._writer
        if writer is not None and (revision is None or revision > writer.revision):
            writer.submit(Job(None))
