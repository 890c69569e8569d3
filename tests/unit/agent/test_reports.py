"""What the runtime tells of an application on its way, and when."""

import asyncio
from types import SimpleNamespace
from typing import Any

from agent.node import NodeConfig, NodeRuntime
from agent.systemd import UnitState
from agent.units import Identity
from horchestra.kinds.application import ApplicationStatus


def _runtime(status: ApplicationStatus) -> tuple[Any, Any]:
    keeper = SimpleNamespace(
        identity=Identity("default", "web", "uid-1"), generation=1, unit=UnitState("web"), status=status,
        wish=object(), removal=None, removed=False,
    )  # fmt: skip
    runtime: Any = NodeRuntime(NodeConfig("sav-01"))
    runtime._reconciler = SimpleNamespace(keepers={"uid-1": keeper})
    return runtime, keeper


async def _told(runtime: Any) -> str:
    async with asyncio.timeout(5):
        async for message in runtime.changes():
            [report] = message.status.applications
            return ApplicationStatus.model_validate_json(report.status_json).phase
    raise AssertionError("nothing was told")


async def test_a_step_that_passes_at_once_is_not_told() -> None:
    runtime, keeper = _runtime(ApplicationStatus(phase="Starting", reason="Starting"))
    runtime._note("uid-1")
    assert runtime._next_message() is None
    keeper.status = ApplicationStatus(phase="Running")
    runtime._note("uid-1")
    assert runtime._next_message().status.applications[0].uid == "uid-1"
    assert runtime._next_message() is None


async def test_a_step_that_lasts_is_told() -> None:
    runtime, _ = _runtime(ApplicationStatus(phase="Pulling", reason="Pulling"))
    began = asyncio.get_running_loop().time()
    runtime._note("uid-1")
    runtime._note("uid-1")
    assert await _told(runtime) == "Pulling"
    assert asyncio.get_running_loop().time() - began < 1


async def test_a_reason_to_wait_is_told_at_once() -> None:
    runtime, _ = _runtime(ApplicationStatus(phase="Pending", reason="ImageNotFound"))
    runtime._note("uid-1")
    assert runtime._next_message() is not None
