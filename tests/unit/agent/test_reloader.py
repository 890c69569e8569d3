"""daemon-reload for many at once."""

import asyncio
from typing import cast

from agent.errors import AgentError
from agent.systemd import Systemd
from agent.workshop import Reloader


class Manager:
    """systemd's manager, as far as a reload goes."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.reloads = 0
        self.failure = failure

    async def reload(self) -> None:
        self.reloads += 1
        await asyncio.sleep(0)
        if self.failure:
            raise self.failure


def reloader(manager: Manager) -> Reloader:
    return Reloader(cast(Systemd, manager))


async def test_callers_of_one_moment_share_a_reload() -> None:
    manager = Manager()
    shared = reloader(manager)
    await asyncio.gather(*(shared.reload() for _ in range(20)))
    assert manager.reloads == 1


async def test_every_caller_is_told_of_a_failure() -> None:
    shared = reloader(Manager(AgentError("SystemdUnreachable", "the bus is gone")))
    outcomes = await asyncio.gather(*(shared.reload() for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [AgentError] * 3
