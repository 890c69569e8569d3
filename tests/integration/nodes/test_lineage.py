"""Restored, copied and empty data: the node keeps what it has until an administrator decides."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.integration.nodes.conftest import Join
from tests.integration.nodes.estate import Agent, Controller
from tests.integration.nodes.standin import eventually

ACCEPT = "orch.ks-tool.dev/accept-lineage"
ADOPT = "orch.ks-tool.dev/adopt"


async def running(controller: Controller, join: Join) -> Agent:
    agent = await join()
    await controller.apply("web", "sav-01")
    await eventually(lambda: controller.phase("web") == "Running")
    await eventually(lambda: agent.memory().get("revision", 0) > 0)
    return agent


def backup(controller: Controller) -> Path:
    copy = controller.data_dir.with_name("backup")
    shutil.copytree(controller.data_dir, copy)
    return copy


async def restore(controller: Controller, copy: Path) -> None:
    shutil.rmtree(controller.data_dir)
    shutil.copytree(copy, controller.data_dir)
    await controller.start()


async def paused_after_a_restore(controller: Controller, join: Join) -> Agent:
    """`web` was applied after the backup that is restored here."""
    agent = await join()
    await eventually(lambda: agent.runtime.applied)
    await controller.stop()
    copy = backup(controller)
    await controller.start()
    await controller.apply("web", "sav-01")
    await eventually(lambda: controller.phase("web") == "Running")
    await controller.apply("api", "sav-01")
    await eventually(lambda: agent.runtime.names == ["api", "web"])
    await controller.stop()
    await restore(controller, copy)
    await eventually(lambda: controller.condition("sav-01", "ConflictPaused")[0] == "True", 40)
    return agent


async def test_a_restored_backup_pauses_the_node_and_stops_nothing(controller: Controller, join: Join) -> None:
    agent = await paused_after_a_restore(controller, join)
    applied = len(agent.runtime.applied)
    assert len(agent.runtime.running) == 2
    _, reason, message = await eventually(
        lambda: "would run" in (c := controller.condition("sav-01", "ConflictPaused"))[2] and c
    )
    assert reason == "RevisionBehind"
    assert "Once accepted, the node would run 0 application(s) instead of 2." in message
    assert f"kubectl annotate node sav-01 {ACCEPT}={controller.store.lineage}" in message
    # Numbers that grow do not end it, nor does a restart of either side.
    for number in range(60):
        await controller.apply(f"filler-{number}", "elsewhere")
    await agent.stop()
    agent.start()
    await eventually(lambda: controller.sessions.connected("sav-01"))
    await eventually(lambda: controller.condition("sav-01", "ConflictPaused")[0] == "True")
    assert agent.memory()["pause"]
    assert len(agent.runtime.applied) == applied
    assert len(agent.runtime.running) == 2


async def test_an_accepted_lineage_is_followed_and_the_permission_used_up(controller: Controller, join: Join) -> None:
    agent = await paused_after_a_restore(controller, join)
    await controller.apply("new", "sav-01")
    await controller.annotate("sav-01", ACCEPT, controller.store.lineage)
    await eventually(lambda: agent.runtime.names == ["new"])
    await eventually(lambda: controller.condition("sav-01", "ConflictPaused")[0] == "False")
    await eventually(lambda: ACCEPT not in controller.node("sav-01")["metadata"]["annotations"])
    assert agent.memory()["pause"] is None
    assert len(agent.runtime.running) == 3  # what is absent keeps running
    await controller.apply("next", "sav-01")
    await eventually(lambda: agent.runtime.names == ["new", "next"])


async def test_another_lineage_is_not_accepted_by_naming_the_wrong_one(controller: Controller, join: Join) -> None:
    agent = await paused_after_a_restore(controller, join)
    applied = len(agent.runtime.applied)
    await eventually(lambda: agent.runtime.previews)
    await controller.annotate("sav-01", ACCEPT, "something-else")
    lineage = controller.store.lineage
    words = await eventually(
        lambda: "something-else" in (said := controller.condition("sav-01", "ConflictPaused")[2]) and said
    )
    assert f'The annotation says "something-else", which accepts nothing: the lineage expected is {lineage}.' in words
    assert f"{ACCEPT}={lineage} --overwrite" in words
    assert "Once accepted, the node would run" in words
    await controller.apply("new", "sav-01")
    await eventually(lambda: len(agent.runtime.previews[-1].applications) == 1)
    assert controller.condition("sav-01", "ConflictPaused")[0] == "True"
    assert len(agent.runtime.applied) == applied


async def test_an_empty_database_with_the_same_authority_deletes_nothing(controller: Controller, join: Join) -> None:
    agent = await running(controller, join)
    lineage, applied = controller.store.lineage, len(agent.runtime.applied)
    await controller.stop()
    for file in controller.data_dir.glob("db.sqlite3*"):
        file.unlink()
    await controller.start()
    assert controller.store.lineage != lineage
    await eventually(lambda: controller.condition("sav-01", "Adopted")[0] == "False", 40)
    assert "adopt=true" in controller.condition("sav-01", "Adopted")[2]
    assert len(agent.runtime.applied) == applied
    await controller.annotate("sav-01", ADOPT, "true")
    await eventually(lambda: controller.condition("sav-01", "ConflictPaused")[0] == "True")
    assert controller.condition("sav-01", "Adopted")[0] == "True"
    assert controller.condition("sav-01", "ConflictPaused")[1] == "LineageDiffers"
    await controller.annotate("sav-01", ACCEPT, controller.store.lineage)
    await eventually(lambda: agent.memory()["lineage"] == controller.store.lineage)
    assert agent.runtime.desired.removals == []
    assert len(agent.runtime.running) == 1


async def test_a_paused_node_still_reports(controller: Controller, join: Join) -> None:
    agent = await paused_after_a_restore(controller, join)
    await eventually(lambda: controller.condition("sav-01", "Orphaned")[0] == "True")
    assert len(controller.node("sav-01")["status"]["orphans"]) == 2
    assert controller.condition("sav-01", "Ready")[0] == "True"
    assert agent.connection()["connected"]
