"""The session with the controller: dials out, again and again, and remembers on disk what the node follows.

One connection at a time. Losing it changes nothing on the node. The wire is `proto/node.proto`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from proto import node_pb2 as pb
from proto.node_pb2_grpc import NodeStub

from . import certificates, memory
from .config import Config
from .connection import LONG_WAIT, Connection, Ended, explain
from .errors import AgentError
from .memory import Followed
from .outbox import Outbox
from .runtime import Runtime

log = logging.getLogger("horchestra.session")

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
FIRST_WAIT = 0.5
STEADY_SECONDS = 10.0
"""A connection that held this long ends the back-off."""
CERTIFICATE_SECONDS = 3600.0
"""How often the certificate's age is looked at."""

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


class Session:
    """Runs for as long as the agent does."""

    def __init__(
        self, config: Config, runtime: Runtime, machine: Machine, now: Callable[[], float] = time.time
    ) -> None:
        self.config = config
        self.runtime = runtime
        self.machine = machine
        self.now = now
        self.outbox = Outbox()
        self._file = config.state_dir / "session.json"
        self.followed = memory.take_up(self._file)
        self.to_remove: list[str] = []
        self.given = False
        """The runtime was given a desired state since it started."""
        self._node_json = b""
        self._conditions: dict[str, dict[str, Any]] = {}
        self._said = ("", "")
        self._since = ""
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Returns after `stop()`. Raises AgentError when the node's state on disk cannot be used."""
        self.say("alone", "Starting", f"dialling {self.config.endpoint}")
        async with asyncio.TaskGroup() as tasks:
            helping = [tasks.create_task(self._collect()), tasks.create_task(self._watch_certificate())]
            await self._dial()
            for task in helping:
                task.cancel()

    def stop(self) -> None:
        """Say goodbye and end: the controller then knows that the node was not lost."""
        self.stopping.set()
        self.outbox.put(pb.AgentMessage(bye=pb.Bye(reason="Shutdown", message="the agent stops")))

    async def _collect(self) -> None:
        """Keep the outbox current, connected or not."""
        async for message in self.runtime.changes():
            if message.WhichOneof("body") == "node" and message.node.node_json:
                self._node_json = message.node.node_json
                message.node.node_json = self.node_status()
            self.outbox.put(message)
        raise AgentError("RuntimeEnded", "the node's runtime stopped reporting")

    async def _watch_certificate(self) -> None:
        """A session may outlive the day on which the certificate's end comes near."""
        while True:
            await asyncio.sleep(CERTIFICATE_SECONDS)
            with contextlib.suppress(AgentError):
                identity = await asyncio.to_thread(certificates.load, self.config.pki)
                self._look_at(identity)

    def _look_at(self, identity: certificates.Identity) -> None:
        self.set_condition("CertificateExpiring", identity.expiring(datetime.fromtimestamp(self.now(), UTC)))

    async def _dial(self) -> None:
        wait = FIRST_WAIT
        while not self.stopping.is_set():
            started = time.monotonic()
            pause = None
            try:
                # A task of its own: Python 3.11's TaskGroup leaves its task counted as cancelled when a child fails
                # while it is being left, and the next timeout in that task would end the agent.
                await asyncio.create_task(self._connect())
            except Ended as ended:
                self.say("alone", ended.reason, ended.message)
                pause = ended.wait
            # A call that failed lives on in the cycles of its traceback, and its connection with it.
            gc.collect()
            if time.monotonic() - started > STEADY_SECONDS:
                wait = FIRST_WAIT
            if pause is None:
                pause, wait = wait * random.uniform(0.5, 1), min(wait * 2, LONG_WAIT)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.stopping.wait()

    def say(self, state: str, reason: str, message: str) -> None:
        """One line in the log, and one write for `agent status`, per change."""
        if self._said == (state, reason):
            return
        if self._said[0] != state:
            self._since = memory.timestamp()
        self._said = state, reason
        memory.save(
            self.config.state_dir / "connection.json",
            memory.Connection(
                connected=state == "connected",
                since=self._since,
                reason=f"{reason}: {message}",
                pid=os.getpid(),
                endpoint=self.config.endpoint,
                node=self.config.node,
            ),
        )
        calm = state == "connected" or reason in ("Starting", "Stopped")
        log.log(logging.INFO if calm else logging.WARNING, "%s: %s: %s", state, reason, message)

    async def _connect(self) -> None:
        """One connection from dialling to its end. Raises Ended, always."""
        try:
            identity = await asyncio.to_thread(certificates.load, self.config.pki)
            problem = identity.problem(datetime.fromtimestamp(self.now(), UTC))
        except AgentError as error:
            problem = error
        if problem:
            raise Ended(problem.reason, problem.message, LONG_WAIT)
        self._look_at(identity)
        credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
        async with grpc.aio.secure_channel(self.config.endpoint, credentials, options=OPTIONS) as channel:
            try:
                stub = NodeStub(channel)  # type: ignore[no-untyped-call]
                await Connection(self, stub).run()
            except grpc.aio.AioRpcError as error:
                raise Ended(*explain(error.code(), error.details() or "", self.config)) from error

    def set_condition(self, kind: str, message: str | None) -> None:
        if message is None and kind not in self._conditions:
            return
        condition = {"type": kind, "status": "True" if message else "False", "reason": kind, "message": message or ""}
        if self._conditions.get(kind) == condition:
            return
        self._conditions[kind] = condition
        self.outbox.put(pb.AgentMessage(node=pb.NodeReport(node_json=self.node_status())))

    def node_status(self) -> bytes:
        """What the runtime says of the node, with the session's own conditions."""
        status = json.loads(self._node_json or b"{}")
        status["conditions"] = [
            *(c for c in status.get("conditions", []) if c.get("type") not in self._conditions),
            *self._conditions.values(),
        ]
        return json.dumps(status).encode()

    def remember(self, followed: Followed) -> None:
        if followed != self.followed:
            memory.save(self._file, followed)
            self.followed = followed
