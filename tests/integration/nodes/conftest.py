"""A controller and the agents that join it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import django
import pytest

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "horchestra.settings")
django.setup()

from tests.integration.nodes.estate import Agent, Controller  # noqa: E402  # needs Django's settings

Join = Callable[..., Awaitable[Agent]]


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Controller]:
    running = await Controller(tmp_path / "controller").start()
    yield running
    await running.stop()


@pytest.fixture
async def join(controller: Controller, tmp_path: Path) -> AsyncIterator[Join]:
    """Joins a node and starts its agent; `bundle` reuses the one of another agent."""
    agents: list[Agent] = []

    async def make(name: str = "sav-01", machine_id: str = "m1", bundle: dict[str, str] | None = None) -> Agent:
        made = bundle or await controller.bundle(name)
        agent = Agent(tmp_path / f"agent-{len(agents)}", made, machine_id)
        agents.append(agent)
        return agent.start()

    yield make
    for agent in agents:
        await agent.kill()
