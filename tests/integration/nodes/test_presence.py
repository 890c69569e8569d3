"""Who is there: supersession, duplicates, lost nodes, and what is said of them meanwhile."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator

import pytest

from horchestra.apimachinery.admission import SYSTEM
from horchestra.kinds.node import Node
from horchestra.nodes import sessions
from horchestra.storage.options import DeleteOptions
from horchestra.storage.watch import Event, Subscription
from tests.integration.nodes.conftest import Join
from tests.integration.nodes.estate import Agent, Controller
from tests.integration.nodes.standin import eventually


async def running(controller: Controller, join: Join) -> Agent:
    agent = await join()
    await controller.apply("web", "sav-01")
    await eventually(lambda: controller.phase("web") == "Running")
    return agent


async def test_a_lost_node_and_its_applications_read_unknown_and_heal(controller: Controller, join: Join) -> None:
    agent = await running(controller, join)
    await controller.create(
        {**_job("done"), "spec": {"image": "registry.example/job:1", "nodeName": "sav-01", "restartPolicy": "Never"}}
    )
    await eventually(lambda: controller.phase("done") == "Running")
    agent.runtime.report("done", controller.application("done")["metadata"]["uid"], "Succeeded")
    await eventually(lambda: controller.phase("done") == "Succeeded")
    lost = time.monotonic()
    await agent.kill()
    revision = controller.store.watch.revision
    await eventually(lambda: controller.condition("sav-01", "Ready")[0] == "Unknown", 12)
    assert time.monotonic() - lost <= 10.5
    _, reason, message = controller.condition("sav-01", "Ready")
    assert reason == "NodeLost"
    assert "has not been heard since 20" in message
    assert controller.phase("web") == "Unknown"
    assert controller.phase("done") == "Succeeded"
    assert controller.store.watch.revision - revision <= 5
    assert controller.node("sav-01")["status"]["lastSeen"]
    agent.start()
    await eventually(lambda: controller.phase("web") == "Running")
    await eventually(lambda: controller.condition("sav-01", "Ready")[0] == "True")
    assert "NodeLost" in await _reasons(controller, "NodeLost")


async def test_a_short_break_changes_nothing_that_is_stored(controller: Controller, join: Join) -> None:
    agent = await running(controller, join)
    await asyncio.sleep(1.2)
    revision = controller.store.watch.revision
    await agent.kill()
    agent.start()
    await eventually(lambda: controller.sessions.connected("sav-01"))
    await asyncio.sleep(1.5)
    changed = controller.store.watch.subscribe(None, since=revision)
    assert [e async for e in _now(changed)] == []


async def test_a_newer_session_of_the_same_machine_supersedes_the_older_at_once(
    controller: Controller, join: Join
) -> None:
    bundle = await controller.bundle("sav-01")
    old = await join(bundle=bundle)
    await eventually(lambda: old.connection()["connected"])
    new = await join(bundle=bundle)
    await eventually(lambda: not old.connection()["connected"], 2)
    assert "SessionSuperseded" in old.connection()["reason"]
    assert new.connection()["connected"]
    assert "SessionSuperseded" in await _reasons(controller, "SessionSuperseded")


async def test_another_machine_with_the_same_certificate_gets_nothing(controller: Controller, join: Join) -> None:
    bundle = await controller.bundle("sav-01")
    first = await join(bundle=bundle)
    await controller.apply("web", "sav-01")
    await eventually(lambda: controller.phase("web") == "Running")
    second = await join(machine_id="m2", bundle=bundle)
    _, _, message = await eventually(lambda: (c := controller.condition("sav-01", "DuplicateNode"))[0] == "True" and c)
    assert "m2" in message
    assert "m1" in message
    await eventually(lambda: "DuplicateNode" in second.connection()["reason"])
    assert second.runtime.applied == []
    assert first.connection()["connected"]
    # A bundle made for it hands the name over; the machine that had it is the duplicate now.
    third = await join(machine_id="m2", bundle=await controller.bundle("sav-01"))
    await eventually(lambda: third.runtime.names == ["web"])
    assert controller.condition("sav-01", "DuplicateNode")[0] == "False"


async def test_a_duplicate_that_stays_away_is_forgotten(
    controller: Controller, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "DUPLICATE_SECONDS", 0.5)
    bundle = await controller.bundle("sav-01")
    first = await join(bundle=bundle)
    await eventually(lambda: first.connection()["connected"])
    second = await join(machine_id="m2", bundle=bundle)
    await eventually(lambda: controller.condition("sav-01", "DuplicateNode")[0] == "True")
    await second.kill()
    await eventually(lambda: controller.condition("sav-01", "DuplicateNode")[0] == "False")


async def test_after_a_start_of_the_controller_nodes_keep_their_state_for_a_while(
    controller: Controller, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await running(controller, join)
    await agent.kill()
    await controller.stop()
    monkeypatch.setattr(sessions, "START_SECONDS", 2.0)
    await controller.start()
    await asyncio.sleep(1.2)
    assert controller.condition("sav-01", "Ready")[0] == "True"
    assert controller.phase("web") == "Running"
    await eventually(lambda: controller.condition("sav-01", "Ready")[0] == "Unknown", 3)
    assert controller.phase("web") == "Unknown"


async def test_a_restarted_controller_finds_the_node_as_it_was(controller: Controller, join: Join) -> None:
    agent = await running(controller, join)
    applied = len(agent.runtime.applied)
    await controller.stop()
    assert "Shutdown" in (await eventually(lambda: not (c := agent.connection())["connected"] and c))["reason"]
    await controller.start()
    assert controller.node("sav-01")["status"]["lastSeen"]
    await eventually(lambda: controller.sessions.connected("sav-01"), 5)
    assert controller.phase("web") == "Running"
    assert len(agent.runtime.applied) == applied


async def test_an_agent_that_says_goodbye_ends_its_session_at_once(controller: Controller, join: Join) -> None:
    agent = await running(controller, join)
    await agent.stop()
    await eventually(lambda: not controller.sessions.connected("sav-01"), 1)
    assert controller.phase("web") == "Running"


async def test_a_deleted_node_registers_again_while_its_agent_lives(controller: Controller, join: Join) -> None:
    agent = await running(controller, join)
    uid = controller.node("sav-01")["metadata"]["uid"]
    await controller.store.delete(Node, "", "sav-01", DeleteOptions(user=SYSTEM))
    await eventually(lambda: controller.node("sav-01") and controller.node("sav-01")["metadata"]["uid"] != uid)
    await eventually(lambda: controller.condition("sav-01", "Ready")[0] == "True")
    await eventually(lambda: controller.phase("web") == "Running")
    assert len(agent.runtime.running) == 1


async def test_two_hundred_reconnects_leak_nothing(controller: Controller, join: Join) -> None:
    await running(controller, join)

    async def reconnect() -> None:
        before = controller.sessions.session("sav-01")
        assert before is not None
        before.end("Reconnect", "once more")
        await eventually(lambda: controller.sessions.session("sav-01") not in (None, before))

    for _ in range(20):
        await reconnect()
    await asyncio.sleep(1)
    before = _resources()
    for _ in range(200):
        await reconnect()
    await asyncio.sleep(1)
    after = _resources()
    for name, count in after.items():
        assert count <= before[name] + 4, f"{name}: {before[name]} before, {count} after"
    assert controller.phase("web") == "Running"


async def _now(subscription: Subscription) -> AsyncIterator[Event]:
    """What the subscription holds already, Events aside."""
    waiting = asyncio.ensure_future(subscription.next_batch())
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    waiting.cancel()
    for batch in done:
        for event in batch.result():
            if event.entry.cls.resource.kind != "Event":
                yield event


def _resources() -> dict[str, int]:
    return {
        "file descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count() + len(os.listdir("/proc/self/task")),
        "tasks": len(asyncio.all_tasks()),
    }


async def _reasons(controller: Controller, wanted: str) -> set[str]:
    await eventually(lambda: wanted in controller.events())
    return controller.events()


def _job(name: str) -> dict[str, object]:
    return {"apiVersion": "orch.ks-tool.dev/v1", "kind": "Application", "metadata": {"name": name}}
