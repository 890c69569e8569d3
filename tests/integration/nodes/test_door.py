"""Who is let in at the agents' door, and what an agent that means harm can do once it is in."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest

from agent.runtime import EOF
from agent.session import OPTIONS
from horchestra.kinds.event import Event
from horchestra.kinds.noderemoval import NodeRemoval
from horchestra.pki.ca import CertificateAuthority, Issued
from proto import node_pb2 as pb
from proto.node_pb2_grpc import NodeStub
from tests.integration.nodes.conftest import Join
from tests.integration.nodes.estate import Controller
from tests.integration.nodes.standin import eventually

EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
NODE = b'{"allocatable": {"cpu": "4", "memory": "8Gi"}}'
HELLO = pb.AgentMessage(hello=pb.Hello(agent_version="0", machine_id="m9", boot_id="b9", node_json=NODE))


@asynccontextmanager
async def wire(controller: Controller, issued: Issued | None) -> AsyncIterator[NodeStub]:
    authority = controller.authority.ca_pem
    pair = (issued.key, issued.certificate) if issued else (None, None)
    credentials = grpc.ssl_channel_credentials(authority, *pair)
    async with grpc.aio.secure_channel(f"127.0.0.1:{controller.port}", credentials, options=OPTIONS) as channel:
        yield NodeStub(channel)  # type: ignore[no-untyped-call]


async def refusal(controller: Controller, issued: Issued | None) -> tuple[grpc.StatusCode, str]:
    """How a session with this certificate ends before it has begun."""
    async with wire(controller, issued) as stub:
        call = stub.Session()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(HELLO)
            while await call.read() is not EOF:
                pass
        return await call.code(), await call.details() or ""


async def session(stub: NodeStub, hello: pb.AgentMessage = HELLO) -> tuple[Any, pb.Welcome]:
    call = stub.Session()
    await call.write(hello)
    first = await call.read()
    return call, first.welcome


@pytest.mark.parametrize("organizations", [[], ["system:masters"], ["system:nodes", "system:masters"]])
async def test_a_certificate_that_is_no_nodes_is_refused(controller: Controller, organizations: list[str]) -> None:
    code, details = await refusal(controller, controller.authority.issue_client("sav-01", organizations, 1))
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "system:nodes" in details


@pytest.mark.parametrize("name", ["Not_A_Name", "a/b", "-x"])
async def test_a_name_that_no_node_can_have_is_refused(controller: Controller, name: str) -> None:
    code, _ = await refusal(controller, controller.authority.issue_client(name, ["system:nodes"], 1))
    assert code is grpc.StatusCode.PERMISSION_DENIED


async def test_another_authoritys_certificate_does_not_get_past_the_handshake(
    controller: Controller, tmp_path: Any
) -> None:
    other = CertificateAuthority.load_or_create(tmp_path / "other")
    code, _ = await refusal(controller, other.issue_client("sav-01", ["system:nodes"], 1))
    assert code is grpc.StatusCode.UNAVAILABLE


async def test_an_expired_certificate_does_not_get_past_the_handshake(controller: Controller) -> None:
    code, _ = await refusal(controller, controller.authority.issue_client("sav-01", ["system:nodes"], -0.001))
    assert code is grpc.StatusCode.UNAVAILABLE


async def test_no_certificate_does_not_get_past_the_handshake(controller: Controller) -> None:
    code, _ = await refusal(controller, None)
    assert code is grpc.StatusCode.UNAVAILABLE


async def test_a_valid_certificate_that_was_not_issued_here_awaits_adoption(controller: Controller) -> None:
    async with wire(controller, controller.authority.issue_client("stray", ["system:nodes"], 1)) as stub:
        call, welcome = await session(stub)
        assert welcome.verdict == pb.ADOPTION
        status, reason, words = controller.condition("stray", "Adopted")
        assert (status, reason) == ("False", "AwaitingAdoption")
        assert "kubectl annotate node stray orch.ks-tool.dev/adopt=true" in words
        await controller.annotate("stray", "orch.ks-tool.dev/adopt", "true")
        while (message := await call.read()).WhichOneof("body") == "heartbeat":
            pass
        assert message.bye.reason == "Reconnect"
    async with wire(controller, controller.authority.issue_client("stray", ["system:nodes"], 1)) as stub:
        _, welcome = await session(stub)
        assert welcome.verdict == pb.PROCEED


async def test_a_session_must_begin_with_a_hello(controller: Controller) -> None:
    async with wire(controller, controller.authority.issue_client("stray", ["system:nodes"], 1)) as stub:
        call = stub.Session()
        await call.write(pb.AgentMessage(heartbeat=pb.Heartbeat(sequence=1)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_node_cannot_report_about_another_nodes_application(controller: Controller, join: Join) -> None:
    await join("n1", "m1")
    await controller.apply("web", "n1")
    await eventually(lambda: controller.phase("web") == "Running")
    uid = controller.application("web")["metadata"]["uid"]
    bad = await join("n2", "m2")
    await eventually(lambda: controller.condition("n2", "Ready")[0] == "True")
    bad.runtime.report("web", uid, "Failed")
    bad.runtime.told.put_nowait(pb.AgentMessage(acknowledgement=pb.Acknowledgement(removed=[uid])))
    bad.runtime.told.put_nowait(
        pb.AgentMessage(event=pb.EventReport(uid=uid, name="web", type="Warning", reason="Forged", message="x"))
    )
    await controller.apply("other", "n2")
    await eventually(lambda: controller.phase("other") == "Running")
    assert controller.phase("web") == "Running"
    assert "Forged" not in controller.events()
    assert controller.application("web")["metadata"]["finalizers"]


async def test_what_a_hostile_node_reports_is_bounded_before_it_is_stored(controller: Controller, join: Join) -> None:
    agent = await join()
    await controller.apply("web", "sav-01")
    await eventually(lambda: controller.phase("web") == "Running")
    uid = controller.application("web")["metadata"]["uid"]
    conditions = [{"type": f"C{i}", "status": "True", "message": "m" * 5000, "evil": 1} for i in range(5)]
    forged = {"type": "Scheduled", "status": "False", "reason": "Forged"}
    agent.runtime.report(
        "web",
        uid,
        "Running",
        message="\x1b[31m" + "x" * 20_000,
        conditions=[*conditions, forged],
        node="elsewhere",
        addresses=["6.6.6.6"],
        unknownField={"a": 1},
        exitCode=7,
    )
    await eventually(lambda: controller.application("web")["status"].get("exitCode") == 7)
    status = controller.application("web")["status"]
    assert len(status["message"].encode()) <= 1024
    assert "\x1b" not in status["message"]
    assert "unknownField" not in json.dumps(status)
    assert "evil" not in json.dumps(status)
    assert status["node"] == "sav-01"
    assert status["addresses"] == ["10.0.0.5"]
    scheduled = [c for c in status["conditions"] if c["type"] == "Scheduled"]
    assert [c["status"] for c in scheduled] == ["True"]


async def test_reports_that_cannot_be_read_are_dropped_and_the_session_goes_on(controller: Controller) -> None:
    bundle = await controller.bundle("sav-01")
    issued = Issued(bundle["certificate"].encode(), bundle["key"].encode(), 0, EPOCH, EPOCH)
    async with wire(controller, issued) as stub:
        call, _ = await session(stub)
        await controller.apply("web", "sav-01")
        await eventually(lambda: controller.application("web").get("status", {}).get("node") == "sav-01")
        uid = controller.application("web")["metadata"]["uid"]

        async def report(status: bytes) -> None:
            one = pb.ApplicationReport(namespace="default", name="web", uid=uid, generation=1, status_json=status)
            await call.write(pb.AgentMessage(status=pb.StatusReport(applications=[one])))

        before = controller.store.watch.revision
        for bad in (b"\xff", b"[]", b'{"phase": "Dancing"}', b'{"message": "' + b"x" * 100_000 + b'"}', b"[" * 10_000):
            await report(bad)
            await call.write(pb.AgentMessage(node=pb.NodeReport(node_json=bad, volumes_json=bad)))
            await call.write(pb.AgentMessage(event=pb.EventReport(reason="x" * 9000, message="y" * 90_000)))
            await call.write(pb.AgentMessage())
        await report(b'{"phase": "Running"}')
        await eventually(lambda: controller.phase("web") == "Running")
        assert controller.store.watch.revision - before <= 6
        event = await eventually(
            lambda: next((e.obj for e in controller.store.watch.list(Event) if e.obj["message"].startswith("y")), None)
        )
        assert len(event["message"].encode()) <= 1024
        call.cancel()


async def test_a_message_of_a_hundred_megabytes_ends_the_session_only(controller: Controller, join: Join) -> None:
    other = await join("n2", "m2")
    await eventually(lambda: other.connection()["connected"])
    bundle = await controller.bundle("sav-01")
    issued = Issued(bundle["certificate"].encode(), bundle["key"].encode(), 0, EPOCH, EPOCH)
    async with wire(controller, issued) as stub:
        call, _ = await session(stub)
        huge = pb.AgentMessage(event=pb.EventReport(message="y" * 100_000_000))
        with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError)):
            await _speak_until_refused(call, huge)
    assert other.connection()["connected"]


async def _speak_until_refused(call: Any, message: pb.AgentMessage) -> None:
    await call.write(message)
    while await call.read() is not EOF:
        pass


async def test_a_node_cannot_write_the_controllers_conditions_of_itself(controller: Controller, join: Join) -> None:
    agent = await join()
    await eventually(lambda: controller.condition("sav-01", "Ready")[0] == "True")
    forged = [{"type": "Ready", "status": "False"}, {"type": "DiskPressure", "status": "True", "message": "low"}]
    node = {"conditions": forged, "nodeInfo": {"machineID": "m666"}, "lineage": "forged", "orphans": ["x"]}
    agent.runtime.told.put_nowait(pb.AgentMessage(node=pb.NodeReport(node_json=json.dumps(node).encode())))
    await eventually(lambda: controller.condition("sav-01", "DiskPressure")[0] == "True")
    assert controller.condition("sav-01", "Ready")[0] == "True"
    assert controller.node("sav-01")["status"]["nodeInfo"]["machineID"] == "m1"
    assert controller.node("sav-01")["status"].get("lineage") != "forged"
    assert "orphans" not in controller.node("sav-01")["status"]


async def test_a_node_cannot_confirm_removals_of_a_node_whose_name_ends_in_its_own(
    controller: Controller, join: Join
) -> None:
    victim = await join("a.b", "m1")
    await controller.apply("web", "a.b")
    await eventually(lambda: controller.phase("web") == "Running")
    uid = controller.application("web")["metadata"]["uid"]
    await victim.kill()
    await controller.change("web", nodeName="elsewhere")
    await eventually(lambda: controller.store.watch.get(NodeRemoval, "", f"{uid}.a.b"))
    bundle = await controller.bundle("b")
    issued = Issued(bundle["certificate"].encode(), bundle["key"].encode(), 0, EPOCH, EPOCH)
    async with wire(controller, issued) as stub:
        call, _ = await session(stub)
        await call.write(pb.AgentMessage(acknowledgement=pb.Acknowledgement(removed=[f"{uid}.a", uid])))
        await _tell_and_see(controller, call, "b")
    assert controller.store.watch.get(NodeRemoval, "", f"{uid}.a.b") is not None


async def _tell_and_see(controller: Controller, call: Any, node: str) -> None:
    """Everything said before has been read when this returns."""
    mark = json.dumps({"conditions": [{"type": "Mark", "status": "True"}]}).encode()
    await call.write(pb.AgentMessage(node=pb.NodeReport(node_json=mark)))
    await eventually(lambda: controller.condition(node, "Mark")[0] == "True")


async def test_a_node_that_floods_delays_no_other(controller: Controller, join: Join) -> None:
    other = await join("n2", "m2")
    await controller.apply("calm", "n2")
    await eventually(lambda: controller.phase("calm") == "Running")
    bundle = await controller.bundle("sav-01")
    issued = Issued(bundle["certificate"].encode(), bundle["key"].encode(), 0, EPOCH, EPOCH)
    async with wire(controller, issued) as stub:
        call, _ = await session(stub)
        await controller.apply("web", "sav-01")
        await eventually(lambda: controller.application("web").get("status", {}).get("node") == "sav-01")
        uid = controller.application("web")["metadata"]["uid"]
        before = controller.store.watch.revision
        heavy = json.dumps({"conditions": [{"type": "\x1b" * 200, "status": "True"} for _ in range(40)]}).encode()
        reports = [
            pb.ApplicationReport(namespace="default", name="web", uid=one, status_json=heavy)
            for one in (uid, *(f"foreign-{i}" for i in range(99)))
        ]
        for turn in range(20):
            await call.write(pb.AgentMessage(status=pb.StatusReport(applications=reports)))
            await call.write(pb.AgentMessage(node=pb.NodeReport(node_json=heavy, volumes_json=b"[" + b" " * 10**6)))
            strangers = pb.Acknowledgement(removed=[f"x{i}" for i in range(10_000)])
            await call.write(pb.AgentMessage(acknowledgement=strangers))
            for i in range(50):
                words = pb.EventReport(reason="R", message="".join(chr(97 + int(c)) for c in str(turn * 50 + i)))
                await call.write(pb.AgentMessage(event=words))
        await _tell_and_see(controller, call, "sav-01")
        other.runtime.report("calm", controller.application("calm")["metadata"]["uid"], "Failed")
        await eventually(lambda: controller.phase("calm") == "Failed", 3)
        assert controller.store.watch.revision - before < 100
        assert len([e for e in controller.store.watch.list(Event) if e.obj["reason"] == "R"]) <= 25


async def test_numbers_and_times_that_clients_cannot_read_are_not_stored(controller: Controller, join: Join) -> None:
    agent = await join()
    await controller.apply("web", "sav-01")
    await eventually(lambda: controller.phase("web") == "Running")
    uid = controller.application("web")["metadata"]["uid"]
    agent.runtime.report(
        "web", uid, "Running", 2**63 - 1,
        restartCount=10**30, exitCode=-(10**12), startedAt="yesterday", finishedAt="2026-02-03T04:05:06Z\n",
        pull={"bytesDone": 10**25}, currentRevision=-(10**40), message="seen",
    )  # fmt: skip
    status = await eventually(lambda: (s := controller.application("web")["status"]).get("message") == "seen" and s)
    assert (status["restartCount"], status["exitCode"], status["observedGeneration"]) == (2**31 - 1, 0, 1)
    assert abs(status["currentRevision"]) < 2**53 > status["pull"]["bytesDone"]
    assert not {"startedAt", "finishedAt"} & status.keys()


async def test_a_node_that_speaks_but_never_reads_gives_way_to_its_next_session(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horchestra.nodes.session.FAREWELL_SECONDS", 1)
    bundle = await controller.bundle("sav-01")
    issued = Issued(bundle["certificate"].encode(), bundle["key"].encode(), 0, EPOCH, EPOCH)
    async with wire(controller, issued) as stub, wire(controller, issued) as again:
        call, _ = await session(stub)
        old = controller.sessions.session("sav-01")
        assert old is not None
        monkeypatch.setattr(old, "_context", _Stuck(old._context))
        await controller.apply("web", "sav-01")
        await eventually(lambda: old._context.asked)
        await session(again)
        beat = asyncio.create_task(_beat(call))
        await eventually(old.over.is_set, 6)
        beat.cancel()


class _Stuck:
    """A call whose other side has closed its window."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.asked = False

    async def read(self) -> Any:
        return await self._context.read()

    async def write(self, _: Any) -> None:
        self.asked = True
        await asyncio.Event().wait()


async def _beat(call: Any) -> None:
    while True:
        await call.write(pb.AgentMessage(heartbeat=pb.Heartbeat(sequence=1)))
        await asyncio.sleep(0.2)


@pytest.mark.parametrize("text", ["\0", "\x1b[2J", "x" * 1_000_000, "\u202e" * 70])
async def test_what_a_node_says_of_itself_in_its_hello_is_bounded(controller: Controller, text: str) -> None:
    hello = pb.Hello(agent_version=text, machine_id="m" + text, boot_id=text, lineage=text, node_json=b"[" * 10**6)
    async with wire(controller, controller.authority.issue_client("stray", ["system:nodes"], 1)) as stub:
        call = stub.Session()
        await call.write(pb.AgentMessage(hello=hello))
        assert (await call.read()).welcome.verdict == pb.ADOPTION
    stored = json.dumps(controller.node("stray"), ensure_ascii=False)
    assert len(stored) < 5000
    assert text not in stored


async def test_a_stream_that_begins_with_nothing_or_a_foreign_id_is_refused(controller: Controller) -> None:
    async with wire(controller, controller.authority.issue_client("stray", ["system:nodes"], 1)) as stub:
        for first in (pb.StreamMessage(), pb.StreamMessage(stream_id="x" * 100_000, data=b"y" * 10_000_000)):
            call = stub.Stream()
            await call.write(first)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
