"""Events, bounded: one object per subject, reason and kind of message; written seldom; gone after an hour.

Repetitions raise `count`, written at most every ten seconds; one object causes at most 25 writes in a row, then one per
five minutes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from horchestra.apimachinery.admission import SYSTEM
from horchestra.apimachinery.errors import StatusError
from horchestra.kinds.event import Event
from horchestra.nodes.conditions import timestamp
from horchestra.storage.options import DeleteOptions
from horchestra.storage.store import Store
from horchestra.storage.transaction import Transaction

from .application import WRITE

log = logging.getLogger("horchestra.events")

COUNT_SECONDS = 10.0
BURST, REFILL_SECONDS = 25, 300.0
LIFETIME = timedelta(hours=1)
MAX_SERIES = 20_000
"""Kinds of event kept in memory; beyond that new ones are dropped until others expire."""
COMPONENT, AGENT = "horchestra-controller", "horchestra-agent"
MAX_SERIES_OF_ONE = 200
"""The same for one object: what a node says of it must not take the place of other nodes' events."""
_NUMBER = re.compile(r"\d+")
_SWEEP_SECONDS = 60.0


@dataclass(slots=True)
class _Series:
    """Events of one (uid, reason, message without numbers)."""

    obj: dict[str, Any]
    """The Event as it was last recorded."""
    uid: str
    last: float
    written_at: float | None = None
    unwritten: int = 1
    """Occurrences that the store does not know of."""


@dataclass(slots=True)
class _Allowance:
    """Writes that one object may still cause."""

    tokens: float = BURST
    at: float = field(default_factory=float)

    def take(self, now: float) -> bool:
        self.tokens = min(BURST, self.tokens + (now - self.at) / REFILL_SECONDS)
        self.at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class EventRecorder:
    """Call it to record; `run()` writes. Recording never waits and never fails."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._series: dict[str, _Series] = {}
        self._allowances: dict[str, _Allowance] = {}
        self._kinds: Counter[str] = Counter()
        """Series by uid."""
        self._wake = asyncio.Event()

    def __call__(self, obj: dict[str, Any], kind: str, reason: str, message: str, *, node: str = "") -> None:
        event = described(obj, kind, reason, message, node)
        name, now = event["metadata"]["name"], self._clock()
        series = self._series.get(name)
        if series is None:
            uid = obj["metadata"]["uid"]
            if len(self._series) >= MAX_SERIES or self._kinds[uid] >= MAX_SERIES_OF_ONE:
                return
            self._kinds[uid] += 1
            self._series[name] = _Series(event, uid, now)
        else:
            series.obj = {**event, "firstTimestamp": series.obj["firstTimestamp"], "count": series.obj["count"] + 1}
            series.last = now
            series.unwritten += 1
        self._wake.set()

    async def run(self) -> None:
        swept = self._clock()
        while True:
            wait = await self.flush()
            if self._clock() - swept >= _SWEEP_SECONDS:
                swept = self._clock()
                await self.sweep()
            try:
                async with asyncio.timeout(min(wait, _SWEEP_SECONDS)):
                    await self._wake.wait()
                    await asyncio.sleep(0.02)  # what happens together is written together
            except TimeoutError:
                pass
            self._wake.clear()

    async def flush(self) -> float:
        """Write what may be written now; seconds until something else may."""
        now = self._clock()
        due: list[_Series] = []
        wait = _SWEEP_SECONDS
        for series in self._series.values():
            if not series.unwritten:
                continue
            ready = 0.0 if series.written_at is None else series.written_at + COUNT_SECONDS - now
            if ready > 0:
                wait = min(wait, ready)
            elif self._allowances.setdefault(series.uid, _Allowance(at=now)).take(now):
                due.append(series)
        if due:
            written = [(series.obj, series.unwritten) for series in due]
            try:
                await self._store.transaction(lambda transaction: _write(transaction, written))
            except StatusError as error:  # the store is away: what happened is still there when it is back
                log.warning("events wait: %s", error.message)
                return COUNT_SECONDS
            for series, (_, count) in zip(due, written, strict=True):
                series.written_at = now
                series.unwritten -= count
        return wait

    async def sweep(self, moment: datetime | None = None) -> None:
        """Remove what is over an hour old, here and in the store."""
        now = self._clock()
        limit = LIFETIME.total_seconds()
        self._series = {name: s for name, s in self._series.items() if now - s.last < limit}
        self._kinds = used = Counter(s.uid for s in self._series.values())
        self._allowances = {uid: a for uid, a in self._allowances.items() if uid in used}
        before = timestamp((moment or datetime.now(UTC)) - LIFETIME)
        expired = [
            (e.namespace, e.name)
            for e in self._store.watch.list(Event)
            if (e.obj.get("lastTimestamp") or e.obj["metadata"]["creationTimestamp"]) < before
        ]
        if expired:
            await self._store.transaction(lambda transaction: _remove(transaction, expired))


def described(obj: dict[str, Any], kind: str, reason: str, message: str, node: str) -> dict[str, Any]:
    """An Event (core/v1) about `obj`. Its name is the same for the same subject, reason and message without numbers."""
    meta = obj["metadata"]
    namespace = meta.get("namespace") or "default"
    same = "\0".join((meta["uid"], kind, reason, _NUMBER.sub("#", message), node))
    now = timestamp()
    component = AGENT if node else COMPONENT
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{meta['name'][:200]}.{hashlib.sha256(same.encode()).hexdigest()[:16]}",
            "namespace": namespace,
        },
        "involvedObject": {
            "apiVersion": obj["apiVersion"],
            "kind": obj["kind"],
            "namespace": meta.get("namespace", ""),
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": meta.get("resourceVersion", ""),
        },
        "reason": reason,
        "message": message,
        "type": kind,
        "source": {"component": component, **({"host": node} if node else {})},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "reportingComponent": component,
        "reportingInstance": node,
    }


def _write(transaction: Transaction, events: list[tuple[dict[str, Any], int]]) -> None:
    for event, unwritten in events:
        meta = event["metadata"]
        try:
            if transaction.get(Event.resource.qualified, meta["namespace"], meta["name"]) is None:
                transaction.create(Event, {**event, "metadata": dict(meta)}, WRITE)
            else:
                transaction.update(Event, meta["namespace"], meta["name"], _repeated(event, unwritten), WRITE)
        except StatusError as error:
            if error.reason not in ("NotFound", "Forbidden"):  # its namespace is going or gone
                log.warning("event %s: %s", meta["name"], error.message)


def _repeated(event: dict[str, Any], times: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(stored: dict[str, Any]) -> dict[str, Any]:
        count = stored.get("count", 1) + times
        return {**stored, "message": event["message"], "lastTimestamp": event["lastTimestamp"], "count": count}

    return change


def _remove(transaction: Transaction, names: list[tuple[str, str]]) -> None:
    for namespace, name in names:
        try:
            transaction.delete(Event, namespace, name, DeleteOptions(user=SYSTEM))
        except StatusError as error:
            if error.reason != "NotFound":
                raise
