"""The one thread that writes. Queued writes are committed in groups, so that durability costs one fsync for many.

Each write has its savepoint (in the writer's view; statements are sent once per group): one that fails undoes only
itself. A group whose statements or COMMIT fail is undone as a whole and every write in it is told so.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError, InterfaceError, transaction

from horchestra.apimachinery.errors import StatusError
from horchestra.apimachinery.registry import Registry

from .compaction import History
from .database import Database, Position
from .entry import Entry, Event, EventType, Key
from .state import State
from .transaction import Transaction

log = logging.getLogger(__name__)

GROUP = 256
"""Writes per commit."""
_POLL = 1.0
_LOST = (DatabaseError, InterfaceError, OSError)


class LoopClosed(Exception):
    """There is nobody left to tell."""


@dataclass(slots=True)
class Job:
    """A write, or (without `run`) the wish to know what others have committed."""

    run: Callable[[Transaction], Any] | None
    future: asyncio.Future[Any] | None = None
    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class News:
    """What the loop is told after a commit: first a fresh start if there is one, then changes, then outcomes."""

    reset: tuple[list[Entry], list[Event], Position] | None = None
    """Memory starts over with these objects and this history."""
    events: list[Event] = field(default_factory=list)
    compacted: int | None = None
    jobs: list[Job] = field(default_factory=list)
    revision: int = 0
    failure: BaseException | None = None
    """The writer could not start."""


class Writer:
    def __init__(
        self, registry: Registry, database: Database, history: History, deliver: Callable[[News], None], replicas: bool
    ) -> None:
        """`deliver` is called in the writer's thread, in commit order, and may raise LoopClosed. `replicas`: others may
        write too."""
        self._registry = registry
        self._database = database
        self._history = history
        self._deliver = deliver
        self._replicas = replicas
        self._patience = min(_POLL, history.interval) if replicas else history.interval
        """Seconds to wait for a write before looking around: a lost NOTIFY is made up for."""
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._state = State()
        self._lineage = ""
        self._next_compaction = 0.0
        self._ran = self._committing = False
        """How far the group in work has come."""
        self._thread = threading.Thread(target=self._main, name="store-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        """From any thread; never waits."""
        self._queue.put(job)

    def stop(self) -> None:
        """Ends the thread when everything queued is done."""
        self._queue.put(None)

    def join(self) -> None:
        """Blocks."""
        self._thread.join()

    @property
    def revision(self) -> int:
        """The newest known to the writer, its uncommitted group included."""
        return self._state.revision

    # The thread

    def _main(self) -> None:
        news = News()
        try:
            try:
                with self._transaction():
                    self._catch_up(news)
            except Exception as error:
                self._deliver(News(failure=error))
                return
            self._deliver(news)
            while self._round():
                pass
        except LoopClosed:
            log.warning("the event loop ended before the store was closed")
        finally:
            self._database.connection.close()

    def _round(self) -> bool:
        """One group. False after stop()."""
        jobs = self._waiting()
        group = [job for job in jobs if job is not None]
        if group or self._replicas:
            self._deliver(self._process(group))
        if time.monotonic() >= self._next_compaction:
            self._compact()
        return len(group) == len(jobs)

    def _waiting(self) -> list[Job | None]:
        jobs: list[Job | None] = []
        try:
            jobs.append(self._queue.get(timeout=self._patience))
            while len(jobs) < GROUP and jobs[-1] is not None:
                jobs.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        return jobs

    def _process(self, group: list[Job]) -> News:
        news = News(jobs=group)
        writes = [job for job in group if job.run is not None]
        self._ran = self._committing = False
        for attempt in range(2):
            try:
                if writes:
                    self._write(writes, news)
                else:
                    self._refresh(news)
                break
            except Exception as error:
                self._state.undo()
                self._database.connection.close()
                if attempt == 0 and not self._ran and isinstance(error, _LOST):
                    continue
                log.exception("the database did not take a group of %d writes", len(writes))
                for job in group:
                    job.error = self._fault(error)
                break
        news.revision = self._state.revision
        return news

    def _write(self, jobs: list[Job], news: News) -> None:
        events: list[Event] = []
        garbage: list[Key] = []
        with self._transaction():
            self._catch_up(news)
            self._ran = True
            for job in jobs:
                self._run(job, events, garbage)
            if events:
                self._database.store(events)
            self._committing = True
        self._state.commit()
        news.events += events
        self._collect(garbage)

    def _run(self, job: Job, events: list[Event], garbage: list[Key]) -> None:
        savepoint = self._state.mark()
        work = Transaction(self._registry, self._state)
        assert job.run is not None
        try:
            job.result = job.run(work)
        except Exception as error:
            job.error = error
        if job.error is not None or work.dry_run:
            self._state.undo(savepoint)
            return
        events += work.events
        garbage += work.garbage

    def _refresh(self, news: News) -> None:
        position = self._database.position(lock=False)
        if (position.revision, position.lineage) != (self._state.revision, self._lineage):
            with self._transaction():
                self._catch_up(news)

    def _catch_up(self, news: News) -> None:
        """With the counter locked: takes in what others committed, so that the view equals the database."""
        position = self._database.position(lock=True)
        known = self._state.revision
        if position.lineage != self._lineage or not position.compacted <= known <= position.revision:
            self._load(position, news)
        elif position.revision > known:
            for revision, _, event in self._database.events(known, self._state.get):
                if event is not None:
                    self._state.take(event)
                    news.events.append(event)
                self._state.revision = revision
        self._state.commit()

    def _load(self, position: Position, news: News) -> None:
        newest: dict[Key, Entry] = {}
        history: list[Event] = []
        changes: list[tuple[int, int]] = []
        for revision, created, event in self._database.events(position.compacted, newest.get):
            changes.append((created, revision))
            if event is not None:
                history.append(event)
                newest[event.entry.key] = event.entry
                if event.type is EventType.DELETED:
                    del newest[event.entry.key]
        self._history.loaded(changes, time.time_ns() // 1_000_000, time.monotonic())
        state = State()
        for entry in self._database.objects():
            state.load(newest.get(entry.key, entry))
        state.revision = position.revision
        self._state, self._lineage = state, position.lineage
        entries = list(state.all())
        news.reset, news.events = (entries, history, position), []
        self._collect([e.key for e in entries if e.obj["metadata"].get("ownerReferences")])
        log.info("loaded %d objects at revision %d, lineage %s", len(entries), position.revision, position.lineage)

    def _collect(self, keys: list[Key]) -> None:
        for key in keys:
            self.submit(Job(lambda work, key=key: work.collect(key)))  # type: ignore[misc]

    def _compact(self) -> None:
        self._next_compaction = time.monotonic() + self._history.interval
        horizon = self._history.horizon(self._state.revision, time.monotonic())
        if horizon is None:
            return
        try:
            with self._transaction():
                self._database.compact(horizon)
        except _LOST as error:
            log.warning("revisions up to %d were not compacted: %s", horizon, error)
            self._database.connection.close()
            return
        self._deliver(News(compacted=horizon, revision=self._state.revision))

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction.atomic(using=self._database.connection.alias, durable=True)

    def _fault(self, error: Exception) -> StatusError:
        if self._committing:
            message = "the database did not confirm the COMMIT, so that it is not known whether the write was stored"
            return StatusError("Timeout", f"{message}; read it before trying again: {error}")
        return StatusError("ServiceUnavailable", f"the database did not take the write, nothing was stored: {error}")
