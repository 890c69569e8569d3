"""Runs the controllers: each is told which objects to look at, looks at what is stored now, and acts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from horchestra.apimachinery.errors import StatusError
from horchestra.storage.store import Store
from horchestra.storage.watch import Event

log = logging.getLogger("horchestra.controllers")

Key = tuple[str, str, str]
"""(storage key of the kind, namespace, name)."""

WORKERS = 8
"""Objects that one controller looks at side by side: their writes then share commits."""
FIRST_RETRY, LONGEST_RETRY = 0.1, 60.0


@dataclass(frozen=True, slots=True)
class Round:
    """What came of looking at one object: a sentence for the log ("" when all is as it should be) and when to look
    again (seconds; None: when something changes)."""

    sentence: str = ""
    again: float | None = None


DONE = Round()


class Controller(Protocol):
    """Level-driven: `reconcile` reads the present state and may be called any number of times."""

    name: str

    def start(self) -> Iterable[Key]:
        """Forget all, read what is there; every object to look at."""
        ...

    def keys(self, event: Event) -> Iterable[Key]:
        """Objects to look at because of a change; also where a controller keeps its indexes current."""
        ...

    async def reconcile(self, key: Key) -> Round: ...


class WorkQueue:
    """Keys to look at, each waiting once and never looked at twice at a time. Bounded by the objects there are."""

    def __init__(self) -> None:
        self._ready: dict[Key, None] = {}
        self._busy: set[Key] = set()
        self._again: set[Key] = set()
        self._later: dict[Key, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    def add(self, key: Key) -> None:
        if key in self._busy:
            self._again.add(key)
            return
        if (timer := self._later.pop(key, None)) is not None:
            timer.cancel()
        self._ready[key] = None
        self._wake.set()

    def add_later(self, key: Key, seconds: float) -> None:
        if key in self._ready or key in self._again or key in self._later:
            return
        self._later[key] = asyncio.get_running_loop().call_later(seconds, self._due, key)

    def _due(self, key: Key) -> None:
        self._later.pop(key, None)
        self.add(key)

    async def take(self) -> Key:
        while not self._ready:
            self._wake.clear()
            await self._wake.wait()
        key = next(iter(self._ready))
        del self._ready[key]
        self._busy.add(key)
        return key

    def done(self, key: Key) -> None:
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)


class _Runner:
    """One controller with its queue."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.queue = WorkQueue()
        self._failures: dict[Key, int] = {}
        self._said: dict[Key, str] = {}

    def restart(self) -> None:
        for key in self.controller.start():
            self.queue.add(key)

    def offer(self, event: Event) -> None:
        for key in self.controller.keys(event):
            self.queue.add(key)

    async def work(self) -> None:
        while True:
            key = await self.queue.take()
            try:
                outcome = await self._round(key)
            finally:
                self.queue.done(key)
            self._say(key, outcome.sentence)
            if outcome.again is not None:
                self.queue.add_later(key, outcome.again)

    async def _round(self, key: Key) -> Round:
        try:
            outcome = await self.controller.reconcile(key)
        except StatusError as error:
            # A conflict is somebody else's newer write: its event is on its way.
            return self._failed(key, error.message)
        except Exception as error:  # one object must not stop a controller
            log.exception("%s: %s", self.controller.name, "/".join(filter(None, key[1:])))
            return self._failed(key, f"{type(error).__name__}: {error}")
        self._failures.pop(key, None)
        return outcome

    def _failed(self, key: Key, why: str) -> Round:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        return Round(f"failed: {why}", min(FIRST_RETRY * 2 ** min(failures, 16), LONGEST_RETRY))

    def _say(self, key: Key, sentence: str) -> None:
        if self._said.get(key, "") == sentence:
            return
        if sentence:
            self._said[key] = sentence
            log.info("%s: %s: %s", self.controller.name, "/".join(filter(None, key[1:])), sentence)
        else:
            del self._said[key]


async def run(store: Store, controllers: Sequence[Controller]) -> None:
    """Until cancelled."""
    runners = [_Runner(controller) for controller in controllers]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_feed(store, runners))
        for runner in runners:
            for _ in range(WORKERS):
                tasks.create_task(runner.work())


async def _feed(store: Store, runners: Sequence[_Runner]) -> None:
    """Hand changes out; after a gap start over from what is there."""
    while True:
        subscription = store.watch.subscribe(None, since=store.watch.revision)
        for runner in runners:
            runner.restart()
        try:
            while True:
                for event in await subscription.next_batch():
                    for runner in runners:
                        runner.offer(event)
        except StatusError as error:
            log.warning("controllers: %s", error.message)
        finally:
            subscription.close()
