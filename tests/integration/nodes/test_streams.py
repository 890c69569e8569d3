"""Byte streams from a node: opened on request, held back by a slow reader, ended on both sides when either goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from agent.errors import AgentError
from horchestra.apimachinery.desired import LogRequest
from horchestra.apimachinery.errors import StatusError
from horchestra.nodes import streams
from tests.integration.nodes.conftest import Join
from tests.integration.nodes.estate import Agent, Controller
from tests.integration.nodes.standin import eventually

REQUEST = LogRequest(uid="u", namespace="default", name="web", follow=True).model_dump_json().encode()


async def opened(controller: Controller, join: Join) -> tuple[Agent, streams.ByteStream]:
    agent = await join()
    await eventually(lambda: controller.sessions.connected("sav-01"))
    stream = await controller.sessions.open_stream("sav-01", "logs", REQUEST)
    await eventually(lambda: agent.runtime.logs_open == 1)
    return agent, stream


async def test_bytes_arrive_whole_and_in_order(controller: Controller, join: Join) -> None:
    agent, stream = await opened(controller, join)
    sent = [bytes([n % 256]) * 10_000 for n in range(300)] + [b"x" * 1_000_000]
    for chunk in sent:
        agent.runtime.log.put_nowait(chunk)
    agent.runtime.log.put_nowait(None)
    received = b"".join([chunk async for chunk in stream])
    assert received == b"".join(sent)
    await eventually(lambda: agent.runtime.logs_open == 0)


async def test_a_slow_reader_holds_the_node_back(controller: Controller, join: Join) -> None:
    agent, stream = await opened(controller, join)
    for _ in range(1000):
        agent.runtime.log.put_nowait(b"x" * 65_536)
    await eventually(lambda: agent.runtime.log.qsize() < 1000)
    await asyncio.sleep(0.5)
    waiting = agent.runtime.log.qsize()
    assert waiting > 500  # some megabytes lie in windows and buffers, not all of it
    # The session itself is not held back.
    await controller.apply("web", "sav-01")
    await eventually(lambda: controller.phase("web") == "Running")
    agent.runtime.log.put_nowait(None)
    assert sum([len(chunk) async for chunk in stream]) == 65_536_000


async def test_a_reader_that_leaves_ends_the_stream_on_the_node(controller: Controller, join: Join) -> None:
    agent, stream = await opened(controller, join)
    agent.runtime.log.put_nowait(b"first")
    assert await anext(stream) == b"first"
    await stream.aclose()
    await eventually(lambda: agent.runtime.logs_open == 0, 3)
    assert controller.sessions.connected("sav-01")


async def test_a_node_that_goes_away_ends_the_stream_for_its_reader(controller: Controller, join: Join) -> None:
    agent, stream = await opened(controller, join)
    agent.runtime.log.put_nowait(b"first")
    assert await anext(stream) == b"first"
    await agent.kill()
    with pytest.raises(StatusError) as caught:
        async with asyncio.timeout(5):
            await anext(stream)
    assert caught.value.reason == "ServiceUnavailable"


async def test_an_error_of_the_node_reaches_the_reader(controller: Controller, join: Join) -> None:
    await join()
    await eventually(lambda: controller.sessions.connected("sav-01"))
    stream = await controller.sessions.open_stream("sav-01", "dance", REQUEST)
    with pytest.raises(StatusError) as caught:
        await anext(stream)
    assert caught.value.reason == "BadRequest"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("NoPreviousProcess", "BadRequest"),
        ("BadLogRequest", "BadRequest"),
        ("NotFound", "NotFound"),
        ("JournalLost", "ServiceUnavailable"),
    ],
)
async def test_what_the_node_says_becomes_a_reason_of_the_api(
    controller: Controller, join: Join, monkeypatch: pytest.MonkeyPatch, said: str, reason: str
) -> None:
    agent = await join()

    async def logs(request: LogRequest) -> AsyncGenerator[bytes, None]:
        raise AgentError(said, "default/web was not restarted yet")
        yield b""

    monkeypatch.setattr(agent.runtime, "logs", logs)
    await eventually(lambda: controller.sessions.connected("sav-01"))
    stream = await controller.sessions.open_stream("sav-01", "logs", REQUEST)
    with pytest.raises(StatusError, match="was not restarted yet") as caught:
        await anext(stream)
    assert caught.value.reason == reason


async def test_a_node_that_is_away_is_unavailable(controller: Controller) -> None:
    with pytest.raises(StatusError) as caught:
        await controller.sessions.open_stream("sav-01", "logs", REQUEST)
    assert caught.value.reason == "ServiceUnavailable"
    assert "sav-01" in caught.value.message


async def test_a_node_that_does_not_open_the_stream_times_out(
    controller: Controller, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    await join()
    await eventually(lambda: controller.sessions.connected("sav-01"))
    monkeypatch.setattr(streams, "OPEN_SECONDS", 0.2)
    monkeypatch.setattr("agent.streams.serve", _never)
    with pytest.raises(StatusError, match="did not open the stream"):
        await controller.sessions.open_stream("sav-01", "logs", REQUEST)


async def _never(*_: object) -> None:
    pass


async def test_a_hundred_streams_opened_and_left_leave_nothing(controller: Controller, join: Join) -> None:
    agent, stream = await opened(controller, join)
    await stream.aclose()
    await eventually(lambda: agent.runtime.logs_open == 0)
    await asyncio.sleep(0.2)
    before = len(asyncio.all_tasks())
    for _ in range(100):
        stream = await controller.sessions.open_stream("sav-01", "logs", REQUEST)
        await stream.aclose()
    await eventually(lambda: agent.runtime.logs_open == 0 and len(asyncio.all_tasks()) <= before + 2)
