"""What waits to be sent to the controller: bounded, the newest word on each subject kept."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from proto.node_pb2 import Acknowledgement, AgentMessage, ApplicationReport, Bye, EventReport, NodeReport, StatusReport

MAX_EVENTS = 256
MAX_REPORTS = 200
"""Reports in one message."""


class Outbox:
    """Statuses are kept once per uid, node reports once; events are a queue that loses its oldest."""

    def __init__(self) -> None:
        self._statuses: dict[str, ApplicationReport] = {}
        self._node = NodeReport()
        self._node_unsent = False
        self._events: deque[EventReport] = deque(maxlen=MAX_EVENTS)
        self._acknowledgements: deque[Acknowledgement] = deque(maxlen=MAX_EVENTS)
        self._removed: set[str] = set()
        self._unsent_removed: set[str] = set()
        self._bye: Bye | None = None
        self._wake = asyncio.Event()

    def put(self, message: AgentMessage) -> None:
        """Queue what the node says; hello and heartbeats do not pass here. After a bye nothing more is taken."""
        match message.WhichOneof("body"):
            case "status":
                self._statuses.update((report.uid, report) for report in message.status.applications)
            case "acknowledgement":
                self._removed.update(message.acknowledgement.removed)
                self._unsent_removed.update(message.acknowledgement.removed)
                if message.acknowledgement.digest or message.acknowledgement.preview:
                    self._acknowledgements.append(message.acknowledgement)
            case "node":
                self._node.MergeFrom(message.node)  # a half that this report leaves out keeps its last word
                self._node_unsent = True
            case "event":
                self._events.append(message.event)
            case "bye":
                self._bye = message.bye
            case other:
                raise ValueError(f"a node does not say {other}")
        self._wake.set()

    def reconnected(self, still_to_remove: Iterable[str]) -> None:
        """A snapshot is about to say everything; what the controller may not have heard is said again."""
        self._statuses.clear()
        self._acknowledgements.clear()
        self._removed &= set(still_to_remove)
        self._unsent_removed = set(self._removed)
        self._node_unsent = bool(self._node.ByteSize())
        self._wake.set()

    async def take(self) -> AgentMessage:
        """The next message; acknowledgements first, since objects wait for them."""
        while True:
            message = self._next()
            if message is not None:
                return message
            self._wake.clear()
            await self._wake.wait()

    def _next(self) -> AgentMessage | None:
        if self._bye is not None:
            return AgentMessage(bye=self._bye)
        if self._unsent_removed:
            removed, self._unsent_removed = sorted(self._unsent_removed), set()
            return AgentMessage(acknowledgement=Acknowledgement(removed=removed))
        if self._acknowledgements:
            return AgentMessage(acknowledgement=self._acknowledgements.popleft())
        if self._statuses:
            uids = list(self._statuses)[:MAX_REPORTS]
            return AgentMessage(status=StatusReport(applications=[self._statuses.pop(uid) for uid in uids]))
        if self._node_unsent:
            self._node_unsent = False
            return AgentMessage(node=self._node)
        if self._events:
            return AgentMessage(event=self._events.popleft())
        return None
