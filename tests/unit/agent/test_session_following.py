"""What an agent does with what a controller tells it, right or wrong: the controller here says what the test wants."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent import connection
from agent.config import Config
from agent.runtime import EOF
from agent.session import Machine, Session
from horchestra.apimachinery.desired import DesiredState
from horchestra.pki.ca import CertificateAuthority
from proto import node_pb2 as pb
from proto.node_pb2_grpc import NodeServicer, add_NodeServicer_to_server
from tests.integration.nodes.standin import StandIn, eventually

LINEAGE = "L1"


class Controller(NodeServicer):
    """Greets as it is told, then sends what is put into `say` and keeps what it hears."""

    def __init__(self) -> None:
        self.welcome = pb.Welcome(session_id="s", lineage=LINEAGE, verdict=pb.PROCEED, heartbeat_ms=500)
        self.hellos: list[pb.Hello] = []
        self.heard: list[pb.AgentMessage] = []
        self.say: asyncio.Queue[pb.ControllerMessage] = asyncio.Queue()
        self.skew = 0.0

    async def Session(self, request_iterator: Any, context: Any) -> None:
        self.hellos.append((await context.read()).hello)
        self.welcome.server_time_ms = int((time.time() + self.skew) * 1000)
        await context.write(pb.ControllerMessage(welcome=self.welcome))
        saying = asyncio.ensure_future(self._say(context))
        try:
            while (message := await context.read()) is not EOF:
                self.heard.append(message)
        finally:
            saying.cancel()

    async def _say(self, context: Any) -> None:
        while True:
            await context.write(await self.say.get())

    def desire(self, revision: int, *names: str, lineage: str = LINEAGE, **more: Any) -> str:
        state = DesiredState(
            applications=[{"metadata": {"name": n, "uid": n, "generation": 1, "namespace": "d"}} for n in names],
        )
        body = state.model_dump_json().encode()
        digest = hashlib.sha256(body).hexdigest()
        desired = {"lineage": lineage, "revision": revision, "digest": digest, "body_json": body, **more}
        self.say.put_nowait(pb.ControllerMessage(desired=pb.DesiredState(**desired)))
        return digest

    def acknowledged(self) -> list[int]:
        return [m.acknowledgement.revision for m in self.heard if m.acknowledgement.revision]

    def node_conditions(self) -> dict[str, str]:
        reports = [m.node.node_json for m in self.heard if m.node.node_json]
        conditions = json.loads(reports[-1])["conditions"] if reports else []
        return {c["type"]: f"{c['status']} {c['message']}" for c in conditions}


class Estate:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.controller = Controller()
        self.runtime = StandIn()
        self.authority = CertificateAuthority.load_or_create(directory / "ca")
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        chain = self.authority.issue_server(["127.0.0.1"])
        self._server = grpc.aio.server()
        add_NodeServicer_to_server(self.controller, self._server)  # type: ignore[no-untyped-call]
        credentials = grpc.ssl_server_credentials([(chain.key, chain.certificate)], self.authority.ca_pem, True)
        port = self._server.add_secure_port("127.0.0.1:0", credentials)
        await self._server.start()
        self.config = Config(
            node="n1", endpoint=f"127.0.0.1:{port}", state_dir=self.directory, directory=self.directory
        )
        self.certify(365)

    def certify(self, days: float) -> None:
        issued = self.authority.issue_client("n1", ["system:nodes"], days)
        (self.directory / "pki").mkdir(exist_ok=True)
        for name, data in (("ca", self.authority.ca_pem), ("node", issued.certificate)):
            (self.directory / "pki" / f"{name}.pem").write_bytes(data)
        (self.directory / "pki" / "node.key").write_bytes(issued.key)

    def start(self) -> None:
        self.session = Session(self.config, self.runtime, Machine("m1", "b1"))
        self._task = asyncio.create_task(self.session.run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def restart(self) -> None:
        await self.stop()
        self.start()
        hellos = len(self.controller.hellos)
        await self.until(lambda: len(self.controller.hellos) > hellos)

    async def close(self) -> None:
        await self.stop()
        await self._server.stop(0)

    async def until(self, fact: Any, seconds: float = 5) -> None:
        await eventually(fact, seconds)

    def memory(self) -> dict[str, Any]:
        path = self.directory / "session.json"
        content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"pause": None}
        return content

    def connection(self) -> dict[str, Any]:
        path = self.directory / "connection.json"
        content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"reason": ""}
        return content


@pytest.fixture
async def estate(tmp_path: Path) -> AsyncIterator[Estate]:
    made = Estate(tmp_path)
    await made.open()
    yield made
    await made.close()


async def test_what_was_applied_is_on_disk_before_it_is_acknowledged(estate: Estate) -> None:
    estate.start()
    digest = estate.controller.desire(7, "a")
    await estate.until(lambda: estate.controller.acknowledged() == [7])
    assert estate.memory() == {"lineage": LINEAGE, "revision": 7, "digest": digest, "pause": None}
    await estate.restart()
    assert (estate.controller.hellos[-1].lineage, estate.controller.hellos[-1].revision) == (LINEAGE, 7)


async def test_an_older_revision_of_the_same_lineage_changes_nothing(estate: Estate) -> None:
    estate.start()
    estate.controller.desire(7, "a", "b")
    estate.controller.desire(6)
    estate.controller.desire(8, "a", "b", "c")
    await estate.until(lambda: estate.controller.acknowledged()[-1:] == [8])
    assert 6 not in [revision for _, _, revision in estate.runtime.applied]
    assert estate.controller.acknowledged() in ([7, 8], [8])


async def test_an_equal_digest_is_not_applied_again(estate: Estate) -> None:
    estate.start()
    estate.controller.desire(7, "a")
    await estate.until(lambda: estate.controller.acknowledged() == [7])
    estate.controller.desire(9, "a")
    await estate.until(lambda: estate.controller.acknowledged() == [7, 9])
    assert len(estate.runtime.applied) == 1
    assert estate.memory()["revision"] == 9


async def test_a_body_that_does_not_match_its_digest_is_not_applied(estate: Estate) -> None:
    estate.start()
    estate.controller.desire(7, "a", digest="0" * 64)
    estate.controller.desire(8, "b")
    await estate.until(lambda: estate.controller.acknowledged() == [8])
    assert [revision for _, _, revision in estate.runtime.applied] == [8]


async def test_another_lineage_within_a_session_pauses_the_node_by_itself(estate: Estate) -> None:
    estate.start()
    estate.controller.desire(7, "a")
    await estate.until(lambda: estate.controller.acknowledged() == [7])
    estate.controller.desire(99, "x", lineage="L2")
    await estate.until(lambda: estate.memory()["pause"])
    assert len(estate.runtime.applied) == 1
    await estate.until(lambda: len(estate.controller.hellos) == 2)
    assert estate.controller.hellos[1].paused


async def test_a_pause_outlives_the_agent_and_ends_only_with_acceptance(estate: Estate) -> None:
    estate.controller.welcome.verdict = pb.PAUSE
    estate.start()
    await estate.until(lambda: estate.controller.hellos)
    estate.controller.desire(50, "x", preview=True)
    await estate.until(lambda: any(m.acknowledgement.preview for m in estate.controller.heard))
    estate.controller.welcome.verdict = pb.PROCEED
    await estate.restart()
    assert estate.controller.hellos[-1].paused
    estate.controller.desire(51, "x")
    estate.controller.desire(52, "x", preview=True)
    await estate.until(lambda: len(estate.runtime.previews) == 2)
    assert estate.runtime.applied == []
    estate.controller.welcome.verdict = pb.ACCEPT
    await estate.restart()
    estate.controller.desire(3, "x")
    await estate.until(lambda: estate.runtime.names == ["x"])
    await estate.until(lambda: estate.memory()["pause"] is None)
    assert estate.memory()["revision"] == 3


async def test_acceptance_that_was_not_used_does_not_end_the_pause(estate: Estate) -> None:
    estate.controller.welcome.verdict = pb.PAUSE
    estate.start()
    await estate.until(lambda: (estate.directory / "session.json").exists())
    estate.controller.welcome.verdict = pb.ACCEPT
    await estate.restart()
    await estate.restart()
    assert estate.controller.hellos[-1].paused


async def test_a_restarted_agent_asks_for_the_whole_state_once(estate: Estate) -> None:
    estate.start()
    digest = estate.controller.desire(7, "a")
    await estate.until(lambda: estate.controller.acknowledged() == [7])
    await estate.restart()
    assert estate.controller.hellos[-1].digest == ""
    estate.controller.desire(7, "a")
    await estate.until(lambda: len(estate.runtime.applied) == 2)
    await estate.until(lambda: estate.memory()["digest"] == digest)


async def test_a_silent_controller_is_left_and_dialled_again(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 1)
    estate.start()
    await estate.until(lambda: len(estate.controller.hellos) == 2, 8)


async def test_a_clock_that_is_off_is_reported_with_the_seconds(estate: Estate) -> None:
    estate.controller.skew = -612
    estate.start()
    await estate.until(lambda: "ClockSkew" in estate.controller.node_conditions())
    assert estate.controller.node_conditions()["ClockSkew"].startswith(
        "True ClockSkew 612s: this host's clock is ahead"
    )


async def test_a_certificate_that_nears_its_end_is_reported(estate: Estate) -> None:
    estate.certify(0.002)  # of its three minutes and the ten before, most are over
    estate.start()
    await estate.until(lambda: "CertificateExpiring" in estate.controller.node_conditions())
    assert "createnodecert" in estate.controller.node_conditions()["CertificateExpiring"]


async def test_an_expired_certificate_is_said_without_dialling(estate: Estate) -> None:
    estate.certify(-0.001)
    estate.start()
    await estate.until(lambda: "CertificateExpired" in estate.connection()["reason"])
    assert estate.controller.hellos == []


async def test_one_line_is_logged_for_a_state_however_often_it_is_tried(
    estate: Estate, caplog: pytest.LogCaptureFixture
) -> None:
    await estate._server.stop(0)
    estate.start()
    await asyncio.sleep(2.5)
    assert caplog.text.count("alone: ControllerUnreachable") == 1


@pytest.mark.parametrize("damage", ["{", "", "\0" * 64, "[]", '{"lineage": 7, "revision": "x"}'])
async def test_a_damaged_memory_pauses_the_node_and_is_kept(estate: Estate, damage: str) -> None:
    (estate.directory / "session.json").write_text(damage)
    session = Session(estate.config, estate.runtime, Machine("m1", "b1"))
    assert session.followed.pause
    assert session.followed.lineage not in ("", LINEAGE)
    assert (estate.directory / "session.damaged").read_text() == damage
    assert Session(estate.config, estate.runtime, Machine("m1", "b1")).followed == session.followed


async def test_a_fault_while_applying_does_not_cut_the_node_off(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = estate.runtime.apply

    async def fail_once(*arguments: Any) -> None:
        monkeypatch.setattr(estate.runtime, "apply", apply)
        raise OSError("disk full")

    monkeypatch.setattr(estate.runtime, "apply", fail_once)
    estate.start()
    estate.controller.desire(7, "a")
    await asyncio.sleep(0.2)
    estate.controller.desire(8, "a", "b")
    await estate.until(lambda: estate.controller.acknowledged() == [8])
    assert len(estate.controller.hellos) == 1
