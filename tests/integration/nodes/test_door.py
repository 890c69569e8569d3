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
