"""One node's session: a writer, a reader, a clock of silence and a reporter, owned by the call that carries them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from horchestra.apimachinery.errors import StatusError
from horchestra.kinds.application import NODE_FINALIZER, Application
from horchestra.kinds.node import Node
from horchestra.kinds.noderemoval import NodeRemoval
from horchestra.storage.options import DeleteOptions
from horchestra.storage.transaction import Transaction
from proto import node_pb2 as pb

from . import registration
from .bounds import cut
from .desired import Encoded, desired_state, encode
from .registration import WRITE, Greeting
from .status import Reporter
from .streams import EOF

if TYPE_CHECKING:
    from .sessions import Sessions

log = logging.getLogger("horchestra.nodes")

HEARTBEAT_SECONDS = 2.5
UNREAD_SECONDS = 120
"""After which a node that speaks but does not read what it is told is given up."""
FAREWELL_SECONDS = 5
"""For the last word to a node."""
SILENCE_SECONDS = 8
"""Seconds without a word after which a node is taken for dead."""
DEBOUNCE_SECONDS = 0.02
MAX_ASKED = 256
"""Stream requests that wait to be sent."""


class Session:
    """Made after the welcome is decided; `run()` returns when the session is over."""

    def __init__(
        self, sessions: Sessions, node: str, hello: pb.Hello, greeting: Greeting, context: Any, peer: str
    ) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._context = context
        self._greeting = greeting
        self._sent = hello.digest if hello.lineage == greeting.lineage else ""
        self._sent_revision = 0
        self._previewed = ""
        """Digest of the state whose preview was answered."""
        self._asked: deque[pb.OpenStream] = deque()
        self._bye: pb.Bye | None = None
        self._changed = True
        self._wake = asyncio.Event()
        self._quiet = True
        self._reporter = Reporter(sessions.store, sessions.index, node)
        self.node = node
        self.peer = peer
        self.id = secrets.token_hex(8)
        self.verdict = greeting.decision.verdict
        self.heard = time.monotonic()
        self.heard_at = datetime.now(UTC)
        self.farewell = "the connection was lost"
        self.over = asyncio.Event()
        self._unread_since: float | None = None
        self._preview = ""
        """What would change on a paused node, in its own words."""

    @property
    def words(self) -> str:
        return self._greeting.decision.reason or "following"

    # What others may do

    def changed(self) -> None:
        """The desired state may have changed."""
        self._changed = True
        self._wake.set()

    def ask(self, request: pb.OpenStream) -> None:
        """Raises StatusError TooManyRequests when the node does not keep up with requests for streams."""
        if len(self._asked) >= MAX_ASKED:
            raise StatusError("TooManyRequests", f'node "{self.node}" has too many streams to open; try again')
        self._asked.append(request)
        self._wake.set()

    def end(self, reason: str, message: str) -> None:
        self._bye = self._bye or pb.Bye(reason=reason, message=message)
        self.farewell = message
        self._wake.set()

    async def say_paused(self) -> None:
        """Condition ConflictPaused as things are now. Raises StatusError when it cannot be stored."""
        entry = self._store.watch.get(Node, "", self.node)
        if entry is not None and self.verdict == pb.PAUSE:
            found = registration.paused(self._greeting.decision, entry.obj, self._greeting.lineage, self._preview)
            await registration.write_conditions(self._store, self.node, [found])

    # Life

    async def run(self) -> None:
        """After `Sessions.started`."""
        try:
            tasks = [
                asyncio.ensure_future(coroutine)
                for coroutine in (self._send(), self._receive(), self._listen(), self._reporter.run())
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
            for task in done:
                task.result()
            await self._reporter.flush()
        except StatusError as error:  # the store is away; the node says everything again when it is back
            self.farewell = f"ended, since nothing could be stored: {error.message}"
        finally:
            self._sessions.ended(self)
            self.over.set()

    async def _send(self) -> None:
        """The one writer: bye, stream requests, the desired state, else a heartbeat. Returns after a bye."""
        sequence = 0
        due = time.monotonic() + HEARTBEAT_SECONDS
        quiet = 0.0
        while True:
            if self._bye is None and not self._asked and not self._changed:
                self._wake.clear()
                try:
                    async with asyncio.timeout(max(due - time.monotonic(), 0)):
                        await self._wake.wait()
                except TimeoutError:
                    sequence += 1
                    await self._write(pb.ControllerMessage(heartbeat=pb.Heartbeat(sequence=sequence)))
                    due = time.monotonic() + HEARTBEAT_SECONDS
            if self._bye is not None:
                await self._write(pb.ControllerMessage(bye=self._bye))
                return
            while self._asked:
                await self._write(pb.ControllerMessage(open_stream=self._asked.popleft()))
            if self._changed:
                await asyncio.sleep(quiet - time.monotonic())  # after a pause at once, else what came meanwhile as one
                self._changed = False
                await self._send_desired()
                quiet = time.monotonic() + DEBOUNCE_SECONDS

    async def _write(self, message: pb.ControllerMessage) -> None:
        self._unread_since = time.monotonic()
        await self._context.write(message)
        self._unread_since = None

    async def _send_desired(self) -> None:
        """Send the whole truth for this node if it differs from what it has."""
        if self.verdict not in (pb.PROCEED, pb.PAUSE, pb.ACCEPT):
            return
        revision = self._store.watch.revision
        encoded = encode(desired_state(self._sessions.index, self.node))
        # Removals are said again in each session: their confirmation may have been lost with the last one.
        again = encoded.removals and self._sent_revision == 0
        preview = self.verdict == pb.PAUSE
        whole = self.verdict == pb.ACCEPT and self._sent_revision == 0
        if encoded.digest == self._sent and not (again or whole or (preview and self._sent_revision == 0)):
            return
        if revision < self._sent_revision:
            return
        self._sent, self._sent_revision = encoded.digest, max(revision, 1)
        await self._write(self._message(encoded, revision, preview))

    def _message(self, encoded: Encoded, revision: int, preview: bool) -> pb.ControllerMessage:
        state = pb.DesiredState(
            lineage=self._greeting.lineage,
            revision=revision,
            digest=encoded.digest,
            body_json=encoded.body,
            preview=preview,
        )
        return pb.ControllerMessage(desired=state)

    async def _listen(self) -> None:
        """Count seconds of silence by ticks of this loop: a loop that was held up itself does not blame the node."""
        silent = 0
        while silent < SILENCE_SECONDS:
            await asyncio.sleep(1)
            silent = silent + 1 if self._quiet else 0
            self._quiet = True
            unread = time.monotonic() - (self._unread_since or time.monotonic())
            if unread > (UNREAD_SECONDS if self._bye is None else FAREWELL_SECONDS):
                self.farewell = self.farewell if self._bye else f"it has read nothing for {UNREAD_SECONDS} s"
                return
        self.farewell = f"nothing was heard for {SILENCE_SECONDS} s"

    async def _receive(self) -> None:
        while True:
            message = await self._context.read()
            if message is EOF:
                return
            self._quiet = False
            self.heard, self.heard_at = time.monotonic(), datetime.now(UTC)
            match message.WhichOneof("body"):
                case "status":
                    self._reporter.take(message.status)
                case "node":
                    self._reporter.take_node(message.node)
                case "acknowledgement":
                    await self._acknowledged(message.acknowledgement)
                case "event":
                    self._event(message.event)
                case "bye":
                    self.farewell = f"the agent said goodbye ({cut(message.bye.reason, 63)})"
                    return
                case _:
                    pass

    def _event(self, report: pb.EventReport) -> None:
        """The node's own words about one of its applications, or about itself."""
        if report.uid:
            entry = self._sessions.index.application(report.uid)
            if entry is None or entry.obj["spec"].get("nodeName") != self.node:
                return
        else:
            entry = self._store.watch.get(Node, "", self.node)
        kind = "Warning" if report.type == "Warning" else "Normal"
        if entry is not None:
            self._sessions.record(entry.obj, kind, cut(report.reason, 128), cut(report.message), node=self.node)

    async def _acknowledged(self, message: pb.Acknowledgement) -> None:
        if message.removed and self.verdict in (pb.PROCEED, pb.ACCEPT):
            uids = [uid for uid in dict.fromkeys(message.removed) if self._is_told_to_go(uid)]
            self._reporter.forget(message.removed)
            if uids:
                await self._store.transaction(lambda transaction: self._removed(transaction, uids))
        if message.preview and self.verdict == pb.PAUSE and message.digest == self._sent != self._previewed:
            self._previewed = self._sent
            self._preview = cut(message.preview.rstrip("."))
            await self.say_paused()
        if message.digest == self._sent and not message.preview and self.verdict in (pb.PROCEED, pb.ACCEPT):
            await registration.follows(self._store, self.node, self._greeting.lineage)
            self.verdict = pb.PROCEED

    def _is_told_to_go(self, uid: str) -> bool:
        index = self._sessions.index
        entry = index.application(uid)
        deleted = entry is not None and entry.obj["metadata"].get("deletionTimestamp")
        return index.leaving(self.node, uid) or bool(deleted)

    def _removed(self, transaction: Transaction, uids: list[str]) -> None:
        """Nothing of these is left on the node: let their objects go."""
        for uid in uids:
            entry = self._sessions.index.application(uid)
            removal = f"{uid}.{self.node}"
            try:
                if entry is not None and entry.obj["spec"].get("nodeName") == self.node:
                    transaction.update(Application, entry.namespace, entry.name, self._release(uid), WRITE)
                found = transaction.get(NodeRemoval.resource.qualified, "", removal)
                if found is not None and found["spec"]["node"] == self.node:
                    transaction.delete(NodeRemoval, "", removal, DeleteOptions(user=WRITE.user))
            except StatusError as error:
                if error.reason != "NotFound":
                    log.warning("node %s: confirmed removal of %s: %s", self.node, cut(uid, 64), error.message)

    @staticmethod
    def _release(uid: str) -> Any:
        def change(obj: dict[str, Any]) -> dict[str, Any]:
            meta = obj["metadata"]
            if meta["uid"] != uid or not meta.get("deletionTimestamp"):
                return obj
            finalizers = [f for f in meta.get("finalizers") or [] if f != NODE_FINALIZER]
            return {**obj, "metadata": {**meta, "finalizers": finalizers}}

        return change
