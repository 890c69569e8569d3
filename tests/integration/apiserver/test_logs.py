"""`kubectl logs` between a client and a node's stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from horchestra.apimachinery.errors import StatusError
from horchestra.apiserver import streams
from horchestra.authz.authorizer import Attributes, Decision, Signal
from horchestra.nodes.streams import ByteStream

from .door import Door
from .test_verbs import APPS, application, reason
from .wire import Wire

LOG = "/api/v1/namespaces/default/pods/web/log"


@pytest.fixture
async def web(admin: Wire) -> str:
    created = await admin.ask("POST", APPS, application(nodeName="n1"))
    uid: str = created.json()["metadata"]["uid"]
    return uid


async def stream(
    door: Door, wire: Wire, query: str = "follow=true", lines: Sequence[bytes] = (b"one\n",)
) -> ByteStream:
    """An open log that has said `lines`."""
    before = len(door.node.streams)
    wire.request("GET", f"{LOG}?{query}")
    while len(door.node.streams) == before:
        await asyncio.wait_for(door.node.opened.wait(), 5)
        await asyncio.sleep(0)
    source = door.node.streams[-1]
    for line in lines:
        await source.put(line)
    return source


async def test_lines_reach_the_client_as_they_come(door: Door, admin: Wire, web: str) -> None:
    source = await stream(door, admin)
    head = await admin.head()
    assert (head.code, head.header("content-type"), head.header("transfer-encoding")) == (200, "text/plain", "chunked")
    assert await admin.chunk() == b"one\n"
    await source.put(b"two\n")
    assert await admin.chunk() == b"two\n"
    source.finish()
    assert await admin.chunk() == b""
    assert (await admin.ask("GET", "/version")).code == 200
    assert source.closed.is_set()


async def test_the_node_is_asked_for_what_the_client_asked(door: Door, admin: Wire, web: str) -> None:
    query = "container=web&tailLines=5&sinceSeconds=60&timestamps=true&previous=true&limitBytes=1000"
    source = await stream(door, admin, query)
    source.finish()
    assert (await admin.answer()).body == b"one\n"
    node, kind, request = door.node.asked[0]
    assert (node, kind) == ("n1", "logs")
    assert json.loads(request) == {
        "uid": web,
        "namespace": "default",
        "name": "web",
        "follow": False,
        "tail_lines": 5,
        "since_seconds": 60,
        "since_time": None,
        "timestamps": True,
        "previous": True,
        "limit_bytes": 1000,
    }


async def test_an_error_before_the_first_byte_is_a_status(door: Door, admin: Wire, web: str) -> None:
    door.node.error = StatusError("ServiceUnavailable", 'node "n1" is not connected')
    answer = await admin.ask("GET", LOG)
    assert reason(answer) == (503, "ServiceUnavailable")
    assert answer.json()["message"] == 'node "n1" is not connected'
    assert "retry-after" not in answer.headers
    door.node.error = None
    source = await stream(door, admin, "", ())
    source.finish(StatusError("NotFound", "no journal of that process is left"))
    assert reason(await admin.answer()) == (404, "NotFound")


async def test_a_quiet_log_begins_without_a_first_byte(
    door: Door, admin: Wire, web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FIRST_BYTE", 0.05)
    source = await stream(door, admin, lines=())
    assert (await admin.head()).code == 200
    await source.put(b"late\n")
    assert await admin.chunk() == b"late\n"


async def test_a_stream_that_breaks_off_does_not_look_complete(door: Door, admin: Wire, web: str) -> None:
    source = await stream(door, admin)
    await admin.head()
    assert await admin.chunk() == b"one\n"
    source.lost()
    assert await admin.reader.read() == b""


async def test_the_nodes_stream_is_closed_at_once_when_the_client_leaves(door: Door, admin: Wire, web: str) -> None:
    wire = await door.wire()
    source = await stream(door, wire)
    await wire.head()
    await wire.close()
    await asyncio.wait_for(source.closed.wait(), 2)


async def test_a_log_ends_when_the_decision_is_withdrawn(door: Door, admin: Wire, web: str) -> None:
    signal = Signal()

    class Withdrawing:
        def authorize(self, attributes: Attributes) -> Decision:
            return Decision(True, "", signal)

    door.app._authorizer = Withdrawing()  # type: ignore[assignment]
    source = await stream(door, admin)
    await admin.head()
    assert await admin.chunk() == b"one\n"
    signal.fire()
    assert await admin.chunk() == b""
    await asyncio.wait_for(source.closed.wait(), 2)


async def test_a_user_may_have_only_so_many_logs_open(door: Door, admin: Wire, web: str) -> None:
    wires = [await door.wire("other", ("system:masters",)) for _ in range(3)]
    for wire in wires:
        await stream(door, wire)
    fourth = await door.wire("other", ("system:masters",))
    answer = await fourth.ask("GET", f"{LOG}?follow=true")
    assert reason(answer) == (429, "TooManyRequests")
    assert "retry-after" not in answer.headers
    await stream(door, admin)
    await wires[0].head()
    await wires[0].close()
    await asyncio.wait_for(door.node.streams[0].closed.wait(), 2)
    await asyncio.sleep(0.05)
    await stream(door, fourth)
    assert (await fourth.head()).code == 200


async def test_a_slow_terminal_holds_the_node_back(door: Door, admin: Wire, web: str) -> None:
    source = await stream(door, admin)
    await admin.head()
    admin.writer.transport.pause_reading()
    sent = 0

    async def pour() -> None:
        nonlocal sent
        while True:
            await source.put(b"x" * 65536)
            sent += 65536

    pouring = asyncio.create_task(pour())
    before = -1
    while sent != before:
        before = sent
        await asyncio.sleep(0.2)
    assert sent < 30_000_000
    pouring.cancel()
    await asyncio.gather(pouring, return_exceptions=True)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("container=other", 400),
        ("tailLines=-1", 400),
        ("tailLines=x", 400),
        ("follow=maybe", 400),
        ("sinceTime=yesterday", 422),
        ("sinceSeconds=0", 422),
        ("limitBytes=0", 422),
        ("sinceSeconds=5&sinceTime=2026-01-01T00:00:00Z", 422),
    ],
)
async def test_queries_that_make_no_sense_are_refused(admin: Wire, web: str, query: str, code: int) -> None:
    assert reason(await admin.ask("GET", f"{LOG}?{query}"))[0] == code


async def test_an_application_on_no_node_has_no_logs(admin: Wire, door: Door) -> None:
    await admin.ask("POST", APPS, application())
    assert reason(await admin.ask("GET", LOG)) == (400, "BadRequest")
    assert reason(await admin.ask("GET", LOG.replace("web", "none"))) == (404, "NotFound")
