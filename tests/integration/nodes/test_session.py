"""The session end to end: real gRPC, real certificates, the real store; only the node's runtime is a stand-in."""

from __future__ import annotations

from tests.integration.nodes.conftest import Join
from tests.integration.nodes.estate import Controller, eventually


async def test_an_application_runs_on_the_node_it_names_and_its_status_is_stored(
    controller: Controller, join: Join
) -> None:
    await controller.apply("web", "sav-01")
    await eventually(lambda: controller.application("web")["status"].get("reason") == "NodeNotRegistered")
    agent = await join()
    await eventually(lambda: controller.phase("web") == "Running")
    status = controller.application("web")["status"]
    assert agent.runtime.names == ["web"]
    assert status["node"] == "sav-01"
    assert status["addresses"] == ["10.0.0.5"]
    assert {c["type"]: c["status"] for c in status["conditions"]}["Scheduled"] == "True"
    assert controller.condition("sav-01", "Ready")[0] == "True"


async def test_a_deleted_application_goes_when_the_node_confirms(controller: Controller, join: Join) -> None:
    agent = await join()
    await controller.apply("web", "sav-01")
    await eventually(lambda: controller.phase("web") == "Running")
    await controller.delete("web")
    await eventually(lambda: not controller.application("web"))
    assert agent.runtime.names == []
    assert agent.runtime.running == {}
