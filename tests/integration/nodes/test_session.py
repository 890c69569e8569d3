"""The session end to end: real gRPC, real certificates, the real store; only the node's runtime is a stand-in."""

from __future__ import annotations

import asyncio
import base64

from horchestra.kinds.noderemoval import NodeRemoval
from tests.integration.nodes.conftest import Join
from tests.integration.nodes.estate import Controller
from tests.integration.nodes.standin import eventually


def secret(name: str, value: str = "x") -> dict[str, object]:
    data = {"key": base64.b64encode(value.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


async def ready(controller: Controller, node: str) -> None:
    await eventually(lambda: controller.condition(node, "Ready")[0] == "True")


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
    assert not controller.store.watch.list(NodeRemoval)


async def test_a_node_gets_only_what_is_its_own(controller: Controller, join: Join) -> None:
    one, two = await join("n1", "m1"), await join("n2", "m2")
    for name in ("mine", "others", "unused"):
        await controller.create(secret(name))
    for node, name in (("n1", "mine"), ("n2", "others")):
        await controller.create(
            {
                "apiVersion": "orch.ks-tool.dev/v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"data-{node}"},
                "spec": {"size": "1Gi", "node": node},
            }
        )
        await ready(controller, node)
        env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": name, "key": "key"}}}]
        await controller.apply(f"app-{node}", node, env=env, volumeMounts=[{"pv": f"data-{node}", "path": "/data"}])
    await eventually(lambda: controller.phase("app-n1") == controller.phase("app-n2") == "Running")
    for agent, node, name in ((one, "n1", "mine"), (two, "n2", "others")):
        desired = agent.runtime.desired
        assert [a["metadata"]["name"] for a in desired.applications] == [f"app-{node}"]
        assert [v["metadata"]["name"] for v in desired.volumes] == [f"data-{node}"]
        assert [(s.kind, s.name) for s in desired.secrets] == [("Secret", name)]


async def test_what_changes_nothing_for_a_node_is_not_sent_to_it(controller: Controller, join: Join) -> None:
    agent = await join()
    await controller.apply("web", "sav-01")
    await eventually(lambda: controller.phase("web") == "Running")
    uid = controller.application("web")["metadata"]["uid"]
    sent = len(agent.runtime.applied)
    await controller.change("web")
    await controller.create(secret("unrelated"))
    agent.runtime.report("web", uid, "Running", restartCount=3)
    await eventually(lambda: controller.application("web")["status"]["restartCount"] == 3)
    await asyncio.sleep(0.2)
    assert len(agent.runtime.applied) == sent
    await controller.change("web", args=["--verbose"])
    await eventually(lambda: len(agent.runtime.applied) == sent + 1)


async def test_a_changed_secret_reaches_the_nodes_that_use_it(controller: Controller, join: Join) -> None:
    agent = await join()
    await controller.apply("web", "sav-01", volumeMounts=[{"secret": {"name": "db"}, "path": "/db"}])
    await eventually(lambda: agent.runtime.names == ["web"])
    assert agent.runtime.desired.secrets[0].missing
    await controller.create(secret("db", "v1"))
    await eventually(lambda: agent.runtime.desired.secrets[0].data)
    assert base64.b64decode(agent.runtime.desired.secrets[0].data["key"]) == b"v1"


async def test_a_desired_state_of_five_megabytes_arrives(controller: Controller, join: Join) -> None:
    agent = await join()
    await eventually(lambda: controller.condition("sav-01", "Ready")[0] == "True")
    for number in range(10):
        await controller.apply(f"big-{number}", "sav-01", env={"BIG": f"{number}" * 500_000})
    await eventually(lambda: len(agent.runtime.names) == 10, 30)
    assert agent.runtime.desired.applications[9]["spec"]["env"]["BIG"] == "9" * 500_000
    await eventually(lambda: controller.phase("big-9") == "Running")


async def test_what_was_deleted_by_force_is_removed_when_the_node_is_back(controller: Controller, join: Join) -> None:
    agent = await join()
    await controller.apply("web", "sav-01")
    await eventually(lambda: controller.phase("web") == "Running")
    await agent.kill()
    await controller.delete("web", grace=0)
    assert not controller.application("web")
    await eventually(lambda: controller.store.watch.list(NodeRemoval))
    agent.start()
    await eventually(lambda: not controller.store.watch.list(NodeRemoval))
    assert agent.runtime.running == {}


async def test_an_application_that_moves_leaves_its_old_node(controller: Controller, join: Join) -> None:
    one, two = await join("n1", "m1"), await join("n2", "m2")
    await controller.apply("web", "n1")
    await eventually(lambda: controller.phase("web") == "Running")
    await eventually(lambda: controller.condition("n2", "Ready")[0] == "True")
    await controller.change("web", nodeName="n2")
    await eventually(lambda: two.runtime.names == ["web"] and controller.phase("web") == "Running")
    await eventually(lambda: one.runtime.running == {} and not controller.store.watch.list(NodeRemoval))
    assert controller.application("web")["status"]["node"] == "n2"


async def test_an_application_that_comes_back_is_not_removed(controller: Controller, join: Join) -> None:
    one = await join("n1", "m1")
    await controller.apply("web", "n1")
    await eventually(lambda: controller.phase("web") == "Running")
    await one.kill()
    await controller.change("web", nodeName="n2")
    await controller.change("web", nodeName="n1")
    await eventually(lambda: [e.obj["spec"]["node"] for e in controller.store.watch.list(NodeRemoval)] == ["n2"])
    one.start()
    await eventually(lambda: one.runtime.names == ["web"])
    assert one.runtime.desired.removals == []


async def test_a_removal_is_confirmed_even_if_the_session_broke_meanwhile(controller: Controller, join: Join) -> None:
    agent = await join()
    await controller.apply("web", "sav-01")
    await eventually(lambda: controller.phase("web") == "Running")
    # The node has removed it, but nobody heard.
    told, agent.runtime.told = agent.runtime.told, asyncio.Queue()
    await controller.delete("web")
    await eventually(lambda: agent.runtime.desired.removals)
    await agent.kill()
    assert controller.application("web")
    agent.runtime.told = told
    agent.start()
    await eventually(lambda: not controller.application("web"))


async def test_what_runs_unasked_is_listed_as_orphaned(controller: Controller, join: Join) -> None:
    agent = await join()
    await eventually(lambda: controller.condition("sav-01", "Ready")[0] == "True")
    agent.runtime.report("old", "uid-old", "Running")
    agent.runtime.running["uid-old"].orphaned = True
    await agent.kill()
    agent.start()
    await eventually(lambda: controller.condition("sav-01", "Orphaned")[0] == "True")
    assert controller.node("sav-01")["status"]["orphans"] == ["default/old uid-old"]
    await eventually(lambda: agent.runtime.applied)
    assert agent.runtime.desired.removals == []


async def test_heartbeats_and_repeated_reports_are_not_written(controller: Controller, join: Join) -> None:
    agent = await join()
    await controller.apply("web", "sav-01")
    await eventually(lambda: controller.phase("web") == "Running")
    await asyncio.sleep(1.5)
    revision = controller.store.watch.revision
    uid = controller.application("web")["metadata"]["uid"]
    for _ in range(20):
        agent.runtime.report("web", uid, "Running")
        await asyncio.sleep(0.05)
    await asyncio.sleep(3)
    assert controller.store.watch.revision == revision


async def test_a_status_is_written_at_once_then_once_a_second_and_the_last_one_always(
    controller: Controller, join: Join
) -> None:
    agent = await join()
    await controller.apply("web", "sav-01")
    await eventually(lambda: controller.phase("web") == "Running")
    await asyncio.sleep(1.5)
    before = controller.store.watch.revision
    uid = controller.application("web")["metadata"]["uid"]
    for count in range(1, 101):
        agent.runtime.report("web", uid, "Running", restartCount=count)
        await asyncio.sleep(0.02)
        if count == 1:
            await eventually(lambda: controller.application("web")["status"]["restartCount"] == 1, 0.5)
    await eventually(lambda: controller.application("web")["status"]["restartCount"] == 100)
    assert controller.store.watch.revision - before <= 5
