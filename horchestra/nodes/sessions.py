"""Who is connected: one session a node, what it is told, and what is stored when it is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from horchestra.apimachinery.errors import StatusError
from horchestra.kinds.application import Application
from horchestra.kinds.node import ACCEPT_LINEAGE, ADOPT, Node
from horchestra.storage.store import Store
from horchestra.storage.transaction import Transaction
from horchestra.storage.watch import Entry, Event, EventType
from proto import node_pb2 as pb

from .conditions import condition, find, merge, timestamp
from .index import NodeIndex
from .registration import WRITE, write_conditions
from .session import Session
from .status import unknown
from .streams import ByteStream, Streams

log = logging.getLogger("horchestra.nodes")

Chore = Callable[[], Awaitable[None]]

LOST_SECONDS = 9.0
"""From a node's last word until it and its applications read Unknown."""
DUPLICATE_SECONDS = 300.0
"""Without another try of a duplicate until the node is no longer marked; it tries every 30 s."""
START_SECONDS = 30.0
"""After the controller's start nodes keep their state for so long: they are reconnecting."""


class Recorder(Protocol):
    """Records an Event about an object: `kind` is Normal or Warning; `node` is set when the words are a node's."""

    def __call__(self, obj: dict[str, Any], kind: str, reason: str, message: str, *, node: str = "") -> None: ...


class Sessions:
    """All of it lives on the event loop; `run()` must be running for anything to happen."""

    def __init__(self, store: Store, record: Recorder) -> None:
        self.store = store
        self.record = record
        self.streams = Streams()
        self.index = NodeIndex(store.watch)
        self._sessions: dict[str, Session] = {}
        self._seen: dict[str, datetime] = {}
        self._arriving: Counter[str] = Counter()
        self._absent: dict[str, asyncio.TimerHandle] = {}
        self._duplicates: dict[str, asyncio.TimerHandle] = {}
        self._due: asyncio.Queue[Chore] = asyncio.Queue()  # at most three entries a node
        self._restated: set[str] = set()
        """Nodes whose pause is to be explained again."""
        self._closing = False

    # For others

    def connected(self, node: str) -> bool:
        return node in self._sessions

    def session(self, node: str) -> Session | None:
        """The node's present session."""
        return self._sessions.get(node)

    def last_seen(self, node: str) -> datetime | None:
        """When the node was heard last: now-ish while it is connected; None when not since the controller's start."""
        session = self._sessions.get(node)
        return session.heard_at if session else self._seen.get(node)

    async def open_stream(self, node: str, kind: str, request_json: bytes) -> ByteStream:
        """A stream of bytes from the node (`kind`: logs; `request_json`: apimachinery.desired.LogRequest), to be closed
        when done. Raises StatusError ServiceUnavailable when the node is away or does not answer within ten seconds."""
        session = self._sessions.get(node)
        if session is None:
            seen = self.last_seen(node)
            since = f"; it was last seen at {timestamp(seen)}" if seen else ""
            raise StatusError("ServiceUnavailable", f'node "{node}" is not connected{since}')

        def ask(stream_id: str) -> None:
            session.ask(pb.OpenStream(stream_id=stream_id, kind=kind, request_json=request_json))

        return await self.streams.open(node, ask)

    # For the server

    @contextmanager
    def arriving(self, node: str) -> Iterator[None]:
        """While a node is being greeted it is not declared lost: the greeting has just stored that it is there."""
        self._arriving[node] += 1
        try:
            yield
        finally:
            self._arriving[node] -= 1
            if not self._arriving[node]:
                del self._arriving[node]

    def duplicate(self, node: str) -> None:
        """Another machine has shown this node's certificate; when it stays away the condition goes."""
        if (timer := self._duplicates.pop(node, None)) is not None:
            timer.cancel()
        self._duplicates[node] = asyncio.get_running_loop().call_later(
            DUPLICATE_SECONDS, self._due.put_nowait, partial(self._forget_duplicate, node)
        )

    def started(self, session: Session) -> None:
        """A session is established; an older one of its node ends at once."""
        old = self._sessions.get(session.node)
        self._sessions[session.node] = session
        timer = self._absent.pop(session.node, None)
        if timer:
            timer.cancel()
        if old is not None:
            old.end("SessionSuperseded", "a newer session of this node has begun")
            message = f"session {session.id} from {session.peer} replaced session {old.id} from {old.peer}"
            self.tell(session.node, "SessionSuperseded", message)
        log.info("node %s: connected from %s (%s)", session.node, session.peer, session.words)

    def ended(self, session: Session) -> None:
        """A session is over, whatever the reason. Does not wait: it runs while its call is being torn down."""
        if self._sessions.get(session.node) is not session:
            return
        del self._sessions[session.node]
        self._seen[session.node] = session.heard_at
        self.streams.session_ended(session.node)
        log.info("node %s: %s", session.node, session.farewell)
        if not self._closing:
            self._miss(session.node, max(LOST_SECONDS - (time.monotonic() - session.heard), 0))

    def _miss(self, node: str, seconds: float) -> None:
        chore = partial(self._declare_lost, node)
        timer = asyncio.get_running_loop().call_later(seconds, self._due.put_nowait, chore)
        if (old := self._absent.pop(node, None)) is not None:
            old.cancel()
        self._absent[node] = timer

    # Life

    async def run(self) -> None:
        for entry in self.store.watch.list(Node):
            ready = find(entry.obj, "Ready")
            if ready and ready["status"] == "True" and entry.name not in self._sessions:
                self._miss(entry.name, START_SECONDS)
            if (find(entry.obj, "DuplicateNode") or {}).get("status") == "True":
                self.duplicate(entry.name)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._work())

    async def close(self) -> None:
        """Say goodbye to every node and store when each was seen last."""
        self._closing = True
        sessions = list(self._sessions.values())
        for session in sessions:
            session.end("Shutdown", "the controller stops")
        if sessions:
            await asyncio.wait([asyncio.ensure_future(s.over.wait()) for s in sessions], timeout=1.5)
        for timer in (*self._absent.values(), *self._duplicates.values()):
            timer.cancel()
        names = [s.node for s in sessions]
        try:
            await self.store.transaction(lambda transaction: self._store_last_seen(transaction, names))
        except StatusError as error:
            log.warning("when nodes were last seen could not be stored: %s", error.message)

    def _store_last_seen(self, transaction: Transaction, nodes: list[str]) -> None:
        for node in nodes:
            seen = timestamp(self._seen.get(node))

            def change(obj: dict[str, Any], seen: str = seen) -> dict[str, Any]:
                return {**obj, "status": {**(obj.get("status") or {}), "lastSeen": seen}}

            _update(transaction, Node, "", node, change)

    async def _follow(self) -> None:
        """Wake the sessions whose desired state may have changed."""
        while True:
            lineage = self.store.lineage
            subscription = self.store.watch.subscribe(None, since=self.store.watch.revision)
            self.index.reload()
            for session in self._sessions.values():
                session.changed()
            try:
                while True:
                    batch = await subscription.next_batch()
                    for node in self.index.apply(batch):
                        if (concerned := self._sessions.get(node)) is not None:
                            concerned.changed()
                    for event in batch:
                        if event.entry.cls is Node:
                            self._node_changed(event)
            except StatusError as error:  # the subscription fell behind, or the data was replaced: start over
                log.warning("node sessions: %s", error.message)
            finally:
                subscription.close()
            if self.store.lineage != lineage:
                for session in list(self._sessions.values()):
                    session.end("Reconnect", "the controller's data was replaced")

    def _node_changed(self, event: Event) -> None:
        session = self._sessions.get(event.entry.name)
        if session is None:
            if event.type is EventType.DELETED and (timer := self._absent.pop(event.entry.name, None)):
                timer.cancel()
            return
        annotations = event.entry.obj["metadata"].get("annotations") or {}
        if event.type is EventType.DELETED:
            session.end("Reconnect", "the Node object was deleted")
        elif session.verdict == pb.PAUSE and annotations.get(ACCEPT_LINEAGE) == self.store.lineage:
            session.end("Reconnect", "an administrator accepted this controller's lineage")
        elif session.verdict == pb.PAUSE and _acceptance(event.previous) != annotations.get(ACCEPT_LINEAGE):
            self._say_again(session.node)
        elif session.verdict == pb.ADOPTION and annotations.get(ADOPT) == "true":
            session.end("Reconnect", "an administrator adopted the node")

    def _say_again(self, node: str) -> None:
        """A permission that was given wrongly, or taken away, is answered where the pause is explained."""
        if node not in self._restated:
            self._restated.add(node)
            self._due.put_nowait(partial(self._restate, node))

    async def _restate(self, node: str) -> None:
        self._restated.discard(node)  # before it is read what to say: a change from here on is said again
        if (session := self._sessions.get(node)) is not None:
            await session.say_paused()

    async def _work(self) -> None:
        """Writes that fell due by time alone; they wait for the store if they must."""
        while True:
            chore = await self._due.get()
            try:
                await chore()
            except StatusError as error:
                log.warning("node sessions: %s", error.message)
                asyncio.get_running_loop().call_later(LOST_SECONDS, self._due.put_nowait, chore)

    async def _forget_duplicate(self, node: str) -> None:
        self._duplicates.pop(node, None)
        if self.store.watch.get(Node, "", node) is not None:
            gone = condition("DuplicateNode", "False", "NotSeen", "the other machine has not come back")
            await write_conditions(self.store, node, [gone])

    async def _declare_lost(self, node: str) -> None:
        """One write for the node and all that runs on it."""
        self._absent.pop(node, None)
        if node in self._sessions or self._closing:
            return
        if node in self._arriving:
            self._miss(node, 1)
            return
        seen = self._seen.get(node)
        stored = self.store.watch.get(Node, "", node)
        if stored is None:
            return
        before = (stored.obj.get("status") or {}).get("lastSeen")
        since = timestamp(seen) if seen else before or "the controller's start"
        message = f'node "{node}" has not been heard since {since}'
        applications = [(e.namespace, e.name) for e in self.index.applications(node) if _ran(e)]

        def write(transaction: Transaction) -> None:
            def lost(obj: dict[str, Any]) -> dict[str, Any]:
                status = obj.get("status") or {}
                ready = condition("Ready", "Unknown", "NodeLost", message)
                fresh = {**status, "conditions": merge(status.get("conditions") or [], [ready])}
                return {**obj, "status": {**fresh, "lastSeen": timestamp(seen)} if seen else fresh}

            _update(transaction, Node, "", node, lost)
            for namespace, name in applications:
                _update(transaction, Application, namespace, name, lambda obj: unknown(obj, message))

        await self.store.transaction(write)
        log.warning("%s: %d application(s) read Unknown", message, len(applications))
        self.tell(node, "NodeLost", message)

    def tell(self, node: str, reason: str, message: str) -> None:
        """A Warning about the Node, as an Event."""
        entry = self.store.watch.get(Node, "", node)
        if entry is not None:
            self.record(entry.obj, "Warning", reason, message)


def _acceptance(node: Entry | None) -> str | None:
    """The lineage that an administrator wrote on a Node."""
    annotations: dict[str, str] = (node.obj["metadata"].get("annotations") or {}) if node else {}
    return annotations.get(ACCEPT_LINEAGE)


def _ran(entry: Entry) -> bool:
    """Whether losing the node makes the application's state unknown: a finished job stays finished."""
    phase = (entry.obj.get("status") or {}).get("phase", "Pending")
    return phase in ("Pulling", "Starting", "Running", "Terminating")


def _update(
    transaction: Transaction, cls: Any, namespace: str, name: str, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    try:
        transaction.update(cls, namespace, name, change, WRITE, subresource="status")
    except StatusError as error:
        if error.reason != "NotFound":
            raise
