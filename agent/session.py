"""The session with the controller: dials out, reports, and applies what it is told under the rules of lineage.

One connection at a time. Losing it changes nothing on the node. The wire is `proto/node.proto`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import grpc
from pydantic import ValidationError

from horchestra.apimachinery.desired import DesiredState, LogRequest
from proto import node_pb2 as pb
from proto.node_pb2_grpc import NodeStub

from . import certificates, memory
from .config import Config
from .errors import AgentError
from .memory import Connection, Followed
from .outbox import Outbox

log = logging.getLogger("horchestra.session")

EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # missing from the stubs

VERSION = "0.1.0"
SILENCE_SECONDS = 8
"""Seconds without a word after which the other side is taken for dead; it speaks at least every 2.5."""
WELCOME_SECONDS = 10
SKEW_SECONDS = 30
CHUNK_BYTES = 64 * 1024
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0

OPTIONS = [
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 4000),
    ("grpc.http2.ping_timeout_ms", 4000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection, not another's back-off
]


class Runtime(Protocol):
    """What the session asks of the node: `agent.node.NodeRuntime`, and a stand-in where a test has no systemd."""

    async def apply(self, desired: DesiredState, lineage: str, revision: int, digest: str) -> None: ...
    async def preview(self, desired: DesiredState) -> str: ...
    def snapshot(self) -> list[pb.ApplicationReport]: ...
    def changes(self) -> AsyncIterator[pb.AgentMessage]: ...
    def logs(self, request: LogRequest) -> AsyncIterator[bytes]: ...


@dataclass(frozen=True, slots=True)
class Machine:
    """Which machine this is and which boot."""

    machine_id: str
    boot_id: str

    @classmethod
    def here(cls) -> Machine:
        """Raises AgentError NoMachineId: without one a copied disk could not be told from this host."""
        try:
            machine_id = Path("/etc/machine-id").read_text().strip()
            boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError as error:
            raise AgentError("NoMachineId", f"cannot read {error.filename}: {error.strerror}") from error
        if not machine_id:
            raise AgentError("NoMachineId", "/etc/machine-id is empty: run systemd-machine-id-setup")
        return cls(machine_id, boot_id)


class Ended(Exception):
    """The connection is over. `wait`: seconds before the next try; None leaves it to the back-off."""

    def __init__(self, reason: str, message: str, wait: float | None = None) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason, self.message, self.wait = reason, message, wait


class Session:
    """Runs for as long as the agent does."""

    def __init__(
        self, config: Config, runtime: Runtime, machine: Machine, now: Callable[[], float] = time.time
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._machine = machine
        self._now = now
        self._outbox = Outbox()
        self._file = config.state_dir / "session.json"
        self._followed = memory.load(self._file)
        self._to_remove: list[str] = []
        self._node_json = b""
        self._conditions: dict[str, dict[str, Any]] = {}
        self._said = ("", "")
        self._since = ""
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Returns after `stop()`. Raises AgentError when the node's state on disk cannot be used."""
        self._say("alone", "Starting", f"dialling {self._config.endpoint}")
        async with asyncio.TaskGroup() as tasks:
            collecting = tasks.create_task(self._collect())
            await self._dial()
            collecting.cancel()

    def stop(self) -> None:
        """Say goodbye and end: the controller then knows that the node was not lost."""
        self._stopping.set()
        self._outbox.put(pb.AgentMessage(bye=pb.Bye(reason="Shutdown", message="the agent stops")))

    async def _collect(self) -> None:
        """Keep the outbox current, connected or not."""
        async for message in self._runtime.changes():
            if message.WhichOneof("body") == "node" and message.node.node_json:
                self._node_json = message.node.node_json
                message.node.node_json = self._node_status()
            self._outbox.put(message)
        raise AgentError("RuntimeEnded", "the node's runtime stopped reporting")

    async def _dial(self) -> None:
        wait = FIRST_WAIT
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                await self._connect()
            except Ended as ended:
                self._say("alone", ended.reason, ended.message)
                if time.monotonic() - started > LONGEST_WAIT:
                    wait = FIRST_WAIT
                pause = wait * random.uniform(0.5, 1) if ended.wait is None else ended.wait
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stopping.wait()
                wait = min(wait * 2, LONGEST_WAIT)

    def _say(self, state: str, reason: str, message: str) -> None:
        """One line in the log, and one write for `agent status`, per change."""
        if self._said == (state, reason):
            return
        if self._said[0] != state:
            self._since = memory.timestamp()
        self._said = state, reason
        memory.save(
            self._config.state_dir / "connection.json",
            Connection(
                connected=state == "connected",
                since=self._since,
                reason=f"{reason}: {message}",
                pid=os.getpid(),
                endpoint=self._config.endpoint,
                node=self._config.node,
            ),
        )
        calm = state == "connected" or reason in ("Starting", "Stopped")
        log.log(logging.INFO if calm else logging.WARNING, "%s: %s: %s", state, reason, message)

    async def _connect(self) -> None:
        """One connection from dialling to its end. Raises Ended, always."""
        try:
            identity = certificates.load(self._config.pki)
            problem = identity.problem(datetime.fromtimestamp(self._now(), UTC))
        except AgentError as error:
            problem = error
        if problem:
            raise Ended(problem.reason, problem.message, LONGEST_WAIT)
        self._set_condition("CertificateExpiring", identity.expiring(datetime.fromtimestamp(self._now(), UTC)))
        credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
        async with grpc.aio.secure_channel(self._config.endpoint, credentials, options=OPTIONS) as channel:
            try:
                stub = NodeStub(channel)  # type: ignore[no-untyped-call]
                await _Connection(self, stub).run()
            except grpc.aio.AioRpcError as error:
                raise Ended(*_explain(error, self._config)) from error

    def _set_condition(self, kind: str, message: str | None) -> None:
        if message is None and kind not in self._conditions:
            return
        condition = {"type": kind, "status": "True" if message else "False", "reason": kind, "message": message or ""}
        if self._conditions.get(kind) == condition:
            return
        self._conditions[kind] = condition
        self._outbox.put(pb.AgentMessage(node=pb.NodeReport(node_json=self._node_status())))

    def _node_status(self) -> bytes:
        """What the runtime says of the node, with the session's own conditions."""
        status = json.loads(self._node_json or b"{}")
        status["conditions"] = [
            *(c for c in status.get("conditions", []) if c.get("type") not in self._conditions),
            *self._conditions.values(),
        ]
        return json.dumps(status).encode()

    def _remember(self, followed: Followed) -> None:
        if followed != self._followed:
            memory.save(self._file, followed)
            self._followed = followed


class _Connection:
    """One session on the wire."""

    def __init__(self, session: Session, stub: NodeStub) -> None:
        self._s = session
        self._stub = stub
        self._heard = True
        self._accepting = ""
        self._newest: pb.DesiredState | None = None
        self._desired = asyncio.Event()
        self._streams = asyncio.Semaphore(session._config.limits.streams)

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
        s, state = self._s, self._s._followed
        hello = pb.Hello(
            agent_version=VERSION,
            machine_id=s._machine.machine_id,
            boot_id=s._machine.boot_id,
            lineage=state.lineage,
            revision=state.revision,
            digest=state.digest,
            paused=state.pause is not None,
            node_json=s._node_status(),
        )
        try:
            async with asyncio.timeout(WELCOME_SECONDS):
                await self._call.write(pb.AgentMessage(hello=hello))
                first = await self._call.read()
        except TimeoutError:
            raise Ended("NoAnswer", f"{s._config.endpoint} did not answer within {WELCOME_SECONDS} s") from None
        except asyncio.InvalidStateError:
            raise Ended("ConnectionLost", "the connection broke while greeting") from None
        if first is EOF:
            await self._broken()
        if first.WhichOneof("body") == "bye":
            raise Ended(first.bye.reason, first.bye.message)
        if first.WhichOneof("body") != "welcome":
            raise Ended("ProtocolError", "the controller's first word was no welcome", LONGEST_WAIT)
        skew = s._now() - first.welcome.server_time_ms / 1000
        text = (
            f"ClockSkew {abs(skew):.0f}s: this host's clock is {'ahead of' if skew > 0 else 'behind'} the controller's"
        )
        s._set_condition("ClockSkew", text if abs(skew) > SKEW_SECONDS else None)
        welcome: pb.Welcome = first.welcome
        return welcome

    def _judge(self, welcome: pb.Welcome) -> int:
        s, verdict = self._s, welcome.verdict
        words = welcome.reason or f"session {welcome.session_id}"
        if verdict == pb.DUPLICATE:
            raise Ended("DuplicateNode", words, LONGEST_WAIT)
        if verdict == pb.PAUSE:
            s._remember(s._followed.paused(welcome.lineage, words))
        if verdict == pb.ACCEPT:
            self._accepting = welcome.lineage
        name = pb.Verdict.Name(verdict).capitalize() if verdict != pb.PROCEED else "Connected"
        s._say("connected", name, words)
        return verdict

    async def _send(self, heartbeat: float) -> None:
        """The one writer: the snapshot, then what is in the outbox, a heartbeat when there is nothing to say."""
        s = self._s
        s._outbox.reconnected(s._to_remove)
        await self._write(pb.AgentMessage(status=pb.StatusReport(snapshot=True, applications=s._runtime.snapshot())))
        sequence = 0
        due = time.monotonic()
        while True:
            message = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(due - time.monotonic(), 0)):
                    message = await s._outbox.take()
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
        except asyncio.InvalidStateError:
            await self._broken()

    async def _broken(self) -> None:
        """The call ended under us: say why. Raises AioRpcError or Ended."""
        if self._s._stopping.is_set():
            raise Ended("Stopped", "the agent stops")
        code, details = await self._call.code(), await self._call.details()
        if code not in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
            raise Ended(*_explain_code(code, details or "", self._s._config))
        raise Ended("ConnectionLost", "the controller went away without a word")

    async def _listen(self) -> None:
        """Count seconds of silence by ticks of this loop: neither a stopped process nor a clock that jumps adds any."""
        silent = 0
        while silent < SILENCE_SECONDS:
            await asyncio.sleep(1)
            silent = 0 if self._heard else silent + 1
            self._heard = False
        raise Ended("ControllerSilent", f"nothing heard from {self._s._config.endpoint} for {SILENCE_SECONDS} s")

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
                    tasks.create_task(self._stream(message.open_stream))
                case "bye":
                    again = 0.0 if message.bye.reason == "Reconnect" else None
                    if message.bye.reason == "SessionSuperseded":
                        again = LONGEST_WAIT
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
        sentence = await self._s._runtime.preview(desired)
        answer = pb.Acknowledgement(
            lineage=message.lineage, revision=message.revision, digest=message.digest, preview=sentence
        )
        self._s._outbox.put(pb.AgentMessage(acknowledgement=answer))

    async def _follow(self, message: pb.DesiredState, desired: DesiredState) -> None:
        s, state = self._s, self._s._followed
        accepted = bool(self._accepting) and message.lineage == self._accepting
        if not accepted:
            if state.pause:
                return
            if state.lineage and message.lineage != state.lineage:
                s._remember(state.paused(message.lineage, "the controller's lineage changed within a session"))
                raise Ended("LineageChanged", f"lineage {message.lineage} instead of {state.lineage}")
            if message.revision < state.revision:
                raise AgentError("OlderRevision", f"the node already follows revision {state.revision}")
        s._to_remove = [removal.uid for removal in desired.removals]
        if accepted or message.digest != state.digest or desired.removals:
            await s._runtime.apply(desired, message.lineage, message.revision, message.digest)
        s._remember(replace(
            state, lineage=message.lineage, revision=message.revision, digest=message.digest, pause=None
        ))  # fmt: skip
        self._accepting = ""
        answer = pb.Acknowledgement(lineage=message.lineage, revision=message.revision, digest=message.digest)
        s._outbox.put(pb.AgentMessage(acknowledgement=answer))

    async def _stream(self, request: pb.OpenStream) -> None:
        """Serve one byte stream over a call of its own; it ends when either side goes."""
        call = self._stub.Stream()
        try:
            await call.write(pb.StreamMessage(stream_id=request.stream_id))
            if self._streams.locked():
                await call.write(_error("TooManyStreams", "the node serves as many streams as it may"))
                return
            async with self._streams:
                async with asyncio.TaskGroup() as tasks:
                    reader = tasks.create_task(_until_closed(call))
                    await self._pump(call, request, reader)
                    reader.cancel()
        except* (grpc.aio.AioRpcError, asyncio.InvalidStateError, _Closed):
            pass  # the reader of the stream went away
        finally:
            call.cancel()

    async def _pump(self, call: Any, request: pb.OpenStream, reader: asyncio.Task[None]) -> None:
        try:
            if request.kind != "logs":
                raise AgentError("UnknownStream", f"this agent does not know streams of kind {request.kind!r}")
            source = self._s._runtime.logs(LogRequest.model_validate_json(request.request_json))
            async with contextlib.aclosing(source) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    for start in range(0, len(chunk), CHUNK_BYTES):
                        await call.write(pb.StreamMessage(data=chunk[start : start + CHUNK_BYTES]))
            await call.write(pb.StreamMessage(end=True))
        except AgentError as error:
            await call.write(_error(error.reason, error.message))
        except ValidationError:
            await call.write(_error("BadRequest", "the request for the stream cannot be read"))
        except (OSError, ValueError, LookupError, TypeError):
            log.exception("a stream of kind %s failed", request.kind)
            await call.write(_error("InternalError", "the node could not serve the stream; its journal says why"))
        await call.done_writing()
        await asyncio.wait([reader], timeout=5)  # let the other side read to the end before the call is cancelled


class _Closed(Exception):
    """The other side has ended the stream."""


async def _until_closed(call: Any) -> None:
    while await call.read() is not EOF:
        pass
    raise _Closed


def _error(reason: str, message: str) -> pb.StreamMessage:
    return pb.StreamMessage(error=pb.StreamError(reason=reason, message=message))


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """What ended the connection; anything unexpected before what is routine."""
    _, unexpected = group.split((Ended, grpc.aio.AioRpcError))
    error = (unexpected or group).exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _explain(error: grpc.aio.AioRpcError, config: Config) -> tuple[str, str, float | None]:
    return _explain_code(error.code(), error.details() or "", config)


def _explain_code(code: grpc.StatusCode, details: str, config: Config) -> tuple[str, str, float | None]:
    """Reason, message for people, and the wait when retrying soon is pointless."""
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return "PermissionDenied", details, LONGEST_WAIT
    if code is grpc.StatusCode.UNAVAILABLE:
        where = config.endpoint
        return "ControllerUnreachable", f"cannot reach {where}: {details}; python -m agent join --check says more", None
    return code.name.title().replace("_", ""), details, None
