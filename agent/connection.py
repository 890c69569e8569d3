"""One session on the wire: greeting, verdict, a writer, a reader, a clock of silence, and who applies."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
from pydantic import ValidationError

from horchestra.apimachinery.desired import DesiredState
from proto import node_pb2 as pb
from proto.node_pb2_grpc import NodeStub

from . import streams
from .config import Config
from .errors import AgentError
from .facts import VERSION
from .runtime import EOF

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger("horchestra.session")

SILENCE_SECONDS = 8
"""Seconds without a word after which the other side is taken for dead; it speaks at least every 2.5."""
WELCOME_SECONDS = 10
SKEW_SECONDS = 30
LONG_WAIT = 30.0
"""Before trying again what a person has to mend."""


class Ended(Exception):
    """The connection is over. `wait`: seconds before the next try; None leaves it to the back-off."""

    def __init__(self, reason: str, message: str, wait: float | None = None) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason, self.message, self.wait = reason, message, wait


class Connection:
    """One session on the wire."""

    def __init__(self, session: Session, stub: NodeStub) -> None:
        self._session = session
        self._stub = stub
        self._heard = True
        self._accepting = ""
        self._newest: pb.DesiredState | None = None
        self._desired = asyncio.Event()
        self._streams = asyncio.Semaphore(session.config.limits.streams)

    async def run(self) -> None:
        call = self._call = self._stub.Session()
        async with contextlib.AsyncExitStack() as cleanup:
            cleanup.callback(call.cancel)
            welcome = await self._greet()
            verdict = self._judge(welcome)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._send(welcome.heartbeat_ms / 1000 or 2.5))
                    tasks.create_task(self._listen())
                    tasks.create_task(self._apply())
                    tasks.create_task(self._receive(tasks, verdict))
            except BaseExceptionGroup as group:
                raise _first(group) from None

    async def _greet(self) -> pb.Welcome:
        s, state = self._session, self._session.followed
        hello = pb.Hello(
            agent_version=VERSION,
            machine_id=s.machine.machine_id,
            boot_id=s.machine.boot_id,
            lineage=state.lineage,
            revision=state.revision,
            digest=state.digest if s.given else "",  # a runtime that has just started needs the values of secrets
            paused=state.pause is not None,
            node_json=s.node_status(),
        )
        try:
            async with asyncio.timeout(WELCOME_SECONDS):
                await self._call.write(pb.AgentMessage(hello=hello))
                first = await self._call.read()
        except TimeoutError:
            raise Ended("NoAnswer", f"{s.config.endpoint} did not answer within {WELCOME_SECONDS} s") from None
        except asyncio.InvalidStateError:
            raise Ended("ConnectionLost", "the connection broke while greeting") from None
        if first is EOF:
            await self._broken()
        if first.WhichOneof("body") == "bye":
            raise Ended(first.bye.reason, first.bye.message)
        if first.WhichOneof("body") != "welcome":
            raise Ended("ProtocolError", "the controller's first word was no welcome", LONG_WAIT)
        skew = s.now() - first.welcome.server_time_ms / 1000
        text = (
            f"ClockSkew {abs(skew):.0f}s: this host's clock is {'ahead of' if skew > 0 else 'behind'} the controller's"
        )
        s.set_condition("ClockSkew", text if abs(skew) > SKEW_SECONDS else None)
        welcome: pb.Welcome = first.welcome
        return welcome

    def _judge(self, welcome: pb.Welcome) -> int:
        s, verdict = self._session, welcome.verdict
        words = welcome.reason or f"session {welcome.session_id}"
        if verdict == pb.DUPLICATE:
            raise Ended("DuplicateNode", words, LONG_WAIT)
        if verdict == pb.PAUSE:
            s.remember(s.followed.paused(welcome.lineage, words))
        if verdict == pb.ACCEPT:
            self._accepting = welcome.lineage
        name = pb.Verdict.Name(verdict).capitalize() if verdict != pb.PROCEED else "Connected"
        s.say("connected", name, words)
        return verdict

    async def _send(self, heartbeat: float) -> None:
        """The one writer: the snapshot, then what is in the outbox, a heartbeat when there is nothing to say."""
        s = self._session
        s.outbox.reconnected(s.to_remove)
        await self._write(pb.AgentMessage(status=pb.StatusReport(snapshot=True, applications=s.runtime.snapshot())))
        sequence = 0
        due = time.monotonic()
        while True:
            message = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(due - time.monotonic(), 0)):
                    message = await s.outbox.take()
            if message is not None:
                await self._write(message)
                if message.WhichOneof("body") == "bye":
                    await self._call.done_writing()
                    return  # the controller ends the call when it has read this
            if time.monotonic() >= due:
                sequence += 1
                await self._write(pb.AgentMessage(heartbeat=pb.Heartbeat(sequence=sequence)))
                due = time.monotonic() + heartbeat

    async def _write(self, message: pb.AgentMessage) -> None:
        try:
            await self._call.write(message)
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            # The reader is about to learn why the call is over: a bye that has arrived counts more than this.
            await asyncio.sleep(2)
            await self._broken()

    async def _broken(self) -> None:
        """The call ended under us: say why. Raises AioRpcError or Ended."""
        if self._session.stopping.is_set():
            raise Ended("Stopped", "the agent stops")
        code, details = await self._call.code(), await self._call.details()
        if code not in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
            raise Ended(*explain(code, details or "", self._session.config))
        raise Ended("ConnectionLost", "the controller went away without a word")

    async def _listen(self) -> None:
        """Count seconds of silence by ticks of this loop: neither a stopped process nor a clock that jumps adds any."""
        silent = 0
        while silent < SILENCE_SECONDS:
            await asyncio.sleep(1)
            silent = 0 if self._heard else silent + 1
            self._heard = False
        raise Ended("ControllerSilent", f"nothing heard from {self._session.config.endpoint} for {SILENCE_SECONDS} s")

    async def _receive(self, tasks: asyncio.TaskGroup, verdict: int) -> None:
        while True:
            message = await self._call.read()
            if message is EOF:
                await self._broken()
            self._heard = True
            match message.WhichOneof("body"):
                case "desired" if verdict in (pb.PROCEED, pb.PAUSE, pb.ACCEPT):
                    self._newest = message.desired
                    self._desired.set()
                case "open_stream":
                    tasks.create_task(
                        streams.serve(self._stub, self._session.runtime, message.open_stream, self._streams)
                    )
                case "bye":
                    again = 0.0 if message.bye.reason == "Reconnect" else None
                    if message.bye.reason == "SessionSuperseded":
                        again = LONG_WAIT
                    raise Ended(message.bye.reason, message.bye.message, again)
                case _:
                    pass

    async def _apply(self) -> None:
        """One desired state at a time; of those that arrive meanwhile only the newest counts."""
        while True:
            await self._desired.wait()
            self._desired.clear()
            message, self._newest = self._newest, None
            if message is None:
                continue
            try:
                if hashlib.sha256(message.body_json).hexdigest() != message.digest:
                    raise AgentError("DigestMismatch", f"desired state {message.revision} does not match its digest")
                desired = DesiredState.model_validate_json(message.body_json)
                if message.preview:
                    await self._preview(message, desired)
                else:
                    await self._follow(message, desired)
            except ValidationError as error:
                log.error("desired state %d cannot be read: %s", message.revision, error.errors()[0]["msg"])
            except AgentError as error:
                log.error("desired state %d was not taken: %s", message.revision, error)
            except (OSError, ValueError, LookupError, TypeError):  # a fault here must not cut the node off
                log.exception("desired state %d was not taken", message.revision)

    async def _preview(self, message: pb.DesiredState, desired: DesiredState) -> None:
        sentence = await self._session.runtime.preview(desired)
        answer = pb.Acknowledgement(
            lineage=message.lineage, revision=message.revision, digest=message.digest, preview=sentence
        )
        self._session.outbox.put(pb.AgentMessage(acknowledgement=answer))

    async def _follow(self, message: pb.DesiredState, desired: DesiredState) -> None:
        s, state = self._session, self._session.followed
        accepted = bool(self._accepting) and message.lineage == self._accepting
        if not accepted:
            if state.pause:
                return
            if state.lineage and message.lineage != state.lineage:
                s.remember(state.paused(message.lineage, "the controller's lineage changed within a session"))
                raise Ended("LineageChanged", f"lineage {message.lineage} instead of {state.lineage}")
            if message.revision < state.revision:
                raise AgentError("OlderRevision", f"the node already follows revision {state.revision}")
        s.to_remove = [removal.uid for removal in desired.removals]
        if accepted or not s.given or message.digest != state.digest or desired.removals:
            await s.runtime.apply(desired, message.lineage, message.revision, message.digest)
            s.given = True
        s.remember(replace(
            state, lineage=message.lineage, revision=message.revision, digest=message.digest, pause=None
        ))  # fmt: skip
        self._accepting = ""
        answer = pb.Acknowledgement(lineage=message.lineage, revision=message.revision, digest=message.digest)
        s.outbox.put(pb.AgentMessage(acknowledgement=answer))


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """What ended the connection; anything unexpected before what is routine."""
    _, unexpected = group.split((Ended, grpc.aio.AioRpcError))
    error = (unexpected or group).exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def explain(code: grpc.StatusCode, details: str, config: Config) -> tuple[str, str, float | None]:
    """Reason, message for people, and the wait when retrying soon is pointless."""
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return "PermissionDenied", details, LONG_WAIT
    if code is grpc.StatusCode.UNAVAILABLE:
        where = config.endpoint
        return (
            "ControllerUnreachable",
            f"cannot reach {where}: {details}; python -m agent status --check says more",
            None,
        )
    return code.name.title().replace("_", ""), details, None
