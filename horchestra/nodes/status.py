"""Reports of applications: is it about this node's object, is it fit to store, and when it is written.

The first change is written at once, then at most one a second per application; the last state is always written.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from horchestra.apimachinery.errors import StatusError
from horchestra.kinds.application import Application, ApplicationStatus
from horchestra.kinds.node import Node
from horchestra.storage.store import Store
from horchestra.storage.transaction import Transaction
from proto import node_pb2 as pb

from . import nodestatus
from .bounds import MAX_ITEMS, cut, cut_all
from .conditions import condition, merge
from .index import NodeIndex
from .nodestatus import BadReport, first_fault
from .registration import WRITE

log = logging.getLogger("horchestra.nodes")

INTERVAL = 1.0
"""Seconds between two writes of one object."""
MAX_REPORT_BYTES = 64 * 1024
MAX_COMPLAINTS = 32
"""Lines in the log about one session's reports."""
_CONTROLLERS_CONDITIONS = ("Scheduled",)


@dataclass(frozen=True, slots=True)
class Report:
    """A checked report: what to lay over the stored status of the application with this uid."""

    namespace: str
    name: str
    uid: str
    status: dict[str, Any]


def check(report: pb.ApplicationReport) -> Report:
    """Read and bound a report. Raises BadReport when it cannot be used."""
    if len(report.status_json) > MAX_REPORT_BYTES:
        raise BadReport(f"status of {len(report.status_json)} bytes; at most {MAX_REPORT_BYTES} are taken")
    try:
        status = ApplicationStatus.model_validate_json(report.status_json)
    except ValidationError as error:
        raise BadReport(f"status of {cut(report.name, 63)}: {first_fault(error)}") from error
    values = cut_all(status.model_dump(exclude_none=True))
    values["conditions"] = [
        c for c in values["conditions"] if c["type"] not in _CONTROLLERS_CONDITIONS and c["status"] in _STATUSES
    ]
    values["observedGeneration"] = max(report.generation, 0)
    for name in ("restartCount", "exitCode"):
        if name in values:
            values[name] = max(min(values[name], _MAX_INT32), 0)
    for name in ("startedAt", "finishedAt"):
        if not _TIME.fullmatch(values.get(name, "")):
            values.pop(name, None)
    return Report(cut(report.namespace, 63), cut(report.name, 63), cut(report.uid, 64), values)


_STATUSES = ("True", "False", "Unknown")
# Clients with types refuse a whole list for one Pod whose number or time they cannot read.
_MAX_INT32 = 2**31 - 1
_TIME = re.compile(r"\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ", re.ASCII)


def laid_over(obj: dict[str, Any], report: Report, node: str, addresses: list[str]) -> dict[str, Any] | None:
    """The application with the report as its status; None when the report is not about this object on this node."""
    meta, stored = obj["metadata"], obj.get("status") or {}
    if meta["uid"] != report.uid or obj["spec"].get("nodeName") != node:
        return None
    status = {**report.status, "node": stored.get("node", ""), "addresses": addresses}
    status["observedGeneration"] = min(status["observedGeneration"], meta.get("generation", 1))
    if meta.get("deletionTimestamp"):
        status["phase"] = "Terminating"
    before = stored.get("conditions") or []
    types = {c["type"] for c in status["conditions"]}
    kept = [c for c in before if c["type"] in _CONTROLLERS_CONDITIONS]
    fresh = merge([c for c in before if c["type"] in types], status["conditions"])
    status["conditions"] = [*kept, *fresh]
    return {**obj, "status": status}


def unknown(obj: dict[str, Any], message: str) -> dict[str, Any]:
    """The application while its node is lost. What was last known of it stays, but for its phase and Ready."""
    stored = obj.get("status") or {}
    lost = condition("Ready", "Unknown", "NodeLost", message)
    conditions = merge(stored.get("conditions") or [], [lost])
    phase = stored.get("phase") if obj["metadata"].get("deletionTimestamp") else "Unknown"
    status = {**stored, "phase": phase, "reason": "NodeLost", "message": message, "conditions": conditions}
    return {**obj, "status": status}


class Reporter:
    """Collects what one node says and writes it in groups. Bounded: one report per application of the node."""

    def __init__(self, store: Store, index: NodeIndex, node: str) -> None:
        self._store = store
        self._index = index
        self._node = node
        self._waiting: dict[str, Report | pb.ApplicationReport] = {}
        """What a node says is read when it is written: once a second, however often it says it."""
        self._written: dict[str, float] = {}
        self._orphans: dict[str, str] = {}
        self._orphans_changed = False
        self._node_json = b""
        self._volumes_json = b""
        self._complaints: set[str] = set()
        self._wake = asyncio.Event()

    def take(self, message: pb.StatusReport) -> None:
        """Reports about other nodes' objects, or none, are dropped; what runs here unasked is an orphan."""
        if message.snapshot:
            self._snapshot({report.uid for report in message.applications})
        for raw in message.applications:
            entry = self._index.application(raw.uid)
            if entry is None or entry.obj["spec"].get("nodeName") != self._node:
                self._orphan(raw, not self._index.leaving(self._node, raw.uid))
            elif len(raw.status_json) > MAX_REPORT_BYTES:
                self._complain(f"status of {len(raw.status_json)} bytes; at most {MAX_REPORT_BYTES} are taken")
            elif (entry.namespace, entry.name) == (raw.namespace, raw.name):
                self._orphan(raw, False)
                # A copy: a part of a message keeps all of it in memory.
                copy = pb.ApplicationReport()
                copy.CopyFrom(raw)
                self._waiting[raw.uid] = copy
        self._wake.set()

    def _complain(self, words: str) -> None:
        """Once for each fault: a node may repeat it without end."""
        if words not in self._complaints and len(self._complaints) < MAX_COMPLAINTS:
            self._complaints.add(words)
            log.warning("node %s: report dropped: %s", self._node, cut(words))

    def forget(self, uids: Iterable[str]) -> None:
        """The node says that nothing of these is left on it."""
        for uid in uids:
            self._waiting.pop(uid, None)
            self._orphans_changed |= self._orphans.pop(uid, None) is not None
        self._wake.set()

    def take_node(self, message: pb.NodeReport) -> None:
        if len(message.node_json) > nodestatus.MAX_STATUS_BYTES:
            self._complain(f"node status of {len(message.node_json)} bytes")
        elif len(message.volumes_json) > nodestatus.MAX_VOLUMES_BYTES:
            self._complain(f"list of volumes of {len(message.volumes_json)} bytes")
        else:
            self._node_json = message.node_json or self._node_json
            self._volumes_json = message.volumes_json or self._volumes_json
            self._wake.set()

    def _snapshot(self, uids: set[str]) -> None:
        """A snapshot names every application on the node: what it leaves out is not there (any more)."""
        self._orphans_changed |= bool(self._orphans)
        self._orphans.clear()
        for entry in self._index.applications(self._node):
            stored = entry.obj.get("status") or {}
            if entry.uid not in uids and stored.get("phase", "Pending") not in ("Pending", "Succeeded", "Failed"):
                status = {"phase": "Pending", "reason": "NotOnNode", "message": "the node has not started it yet"}
                absent = ApplicationStatus.model_validate({**status, "restartCount": stored.get("restartCount", 0)})
                values = {**absent.model_dump(exclude_none=True), "observedGeneration": 0}
                self._waiting[entry.uid] = Report(entry.namespace, entry.name, entry.uid, values)

    def _orphan(self, report: pb.ApplicationReport, orphaned: bool) -> None:
        if not orphaned:
            self._orphans_changed |= self._orphans.pop(report.uid, None) is not None
        elif report.uid not in self._orphans and len(self._orphans) < MAX_ITEMS:
            uid, words = cut(report.uid, 64), f"{cut(report.namespace, 63)}/{cut(report.name, 63)}"
            self._orphans[report.uid] = f"{words} {uid}"
            self._orphans_changed = True

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            wait = await self._write_due()
            if wait is not None:
                try:
                    async with asyncio.timeout(wait):
                        await self._wake.wait()
                except TimeoutError:
                    self._wake.set()

    async def flush(self) -> None:
        """Write everything that waits, now: the session ends."""
        self._written.clear()
        await self._write_due()

    async def _write_due(self) -> float | None:
        """Write what may be written now; seconds until more may, None when nothing waits."""
        now = time.monotonic()
        due = [uid for uid in self._waiting if now - self._written.get(uid, 0.0) >= INTERVAL]
        reports = await self._checked([self._waiting.pop(uid) for uid in due])
        node_due = now - self._written.get("", 0.0) >= INTERVAL and bool(
            self._node_json or self._volumes_json or self._orphans_changed
        )
        if due or node_due:
            for uid in [*due, *([""] if node_due else [])]:
                self._written[uid] = now
            await self._write(reports, node_due)
        if not self._waiting:
            for uid in [uid for uid, at in self._written.items() if now - at >= INTERVAL]:
                del self._written[uid]
        pending = [*self._waiting, *([""] if self._node_json or self._volumes_json or self._orphans_changed else [])]
        return min((max(self._written.get(uid, 0.0) + INTERVAL - now, 0.01) for uid in pending), default=None)

    async def _checked(self, said: list[Report | pb.ApplicationReport]) -> list[Report]:
        found = []
        for one in said:
            await asyncio.sleep(0)  # a thousand reports are no reason to keep others waiting
            try:
                found.append(one if isinstance(one, Report) else check(one))
            except BadReport as error:
                self._complain(str(error))
        return found

    async def _usable(self, read: Callable[[bytes], Any], data: bytes) -> bytes:
        """`data`, or nothing when it cannot be read."""
        try:
            await asyncio.to_thread(read, data)
        except BadReport as error:
            self._complain(str(error))
            return b""
        return data

    async def _write(self, reports: list[Report], node_due: bool) -> None:
        node_json, volumes_json = self._node_json, self._volumes_json
        orphans = sorted(self._orphans.values()) if node_due and self._orphans_changed else None
        if node_due:
            self._node_json = self._volumes_json = b""
            self._orphans_changed = False
            node_json = await self._usable(lambda data: nodestatus.reported({}, data), node_json)
            volumes_json = await self._usable(lambda data: nodestatus.volumes([], data or b"[]"), volumes_json)
        addresses = node_addresses(self._store, self._node)

        def write(transaction: Transaction) -> None:
            _write_applications(transaction, reports, self._node, addresses)
            if node_due:
                _write_node(transaction, self._node, node_json, volumes_json, orphans)

        await self._store.transaction(write)


def node_addresses(store: Store, node: str) -> list[str]:
    entry = store.watch.get(Node, "", node)
    found = (entry.obj.get("status") or {}).get("addresses") or [] if entry else []
    return [a["address"] for a in found if a["type"] == "InternalIP"]


def _write_applications(transaction: Transaction, reports: Iterable[Report], node: str, addresses: list[str]) -> None:
    for report in reports:

        def change(obj: dict[str, Any], report: Report = report) -> dict[str, Any]:
            return laid_over(obj, report, node, addresses) or obj

        try:
            transaction.update(Application, report.namespace, report.name, change, WRITE, subresource="status")
        except StatusError as error:
            if error.reason != "NotFound":
                log.warning("node %s: status of %s/%s: %s", node, report.namespace, report.name, error.message)


def _write_node(
    transaction: Transaction, node: str, node_json: bytes, volumes_json: bytes, orphans: list[str] | None
) -> None:
    def change(obj: dict[str, Any]) -> dict[str, Any]:
        status = obj.get("status") or {}
        status = nodestatus.reported(status, node_json)
        if volumes_json:
            status["volumes"] = nodestatus.volumes(status.get("volumes") or [], volumes_json)
        if orphans is not None:
            status["orphans"] = orphans
            reason = "Orphaned" if orphans else "NoOrphans"
            message = f"run here and are in no desired state: {', '.join(orphans)}" if orphans else ""
            found = condition("Orphaned", "True" if orphans else "False", reason, cut(message))
            status["conditions"] = merge(status.get("conditions") or [], [found])
        return {**obj, "status": status}

    try:
        transaction.update(Node, "", node, change, WRITE, subresource="status")
    except StatusError as error:
        if error.reason != "NotFound":
            log.warning("node %s: status: %s", node, error.message)
