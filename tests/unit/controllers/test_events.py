"""Bounds of events, with a store that only counts and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from horchestra.controllers.events import BURST, EventRecorder, described
from horchestra.storage.watch import WatchCache

APP = {
    "apiVersion": "orch.ks-tool.dev/v1",
    "kind": "Application",
    "metadata": {"name": "web", "namespace": "default", "uid": "u1", "resourceVersion": "7"},
}


class Ledger:
    """Keeps events as the store would, and counts writes."""

    def __init__(self) -> None:
        self.watch = WatchCache()
        self.objects: dict[str, dict[str, Any]] = {}
        self.writes = 0

    async def transaction(self, fn: Callable[[Any], None]) -> None:
        fn(self)

    def get(self, target: str, namespace: str, name: str) -> dict[str, Any] | None:
        return self.objects.get(name)

    def create(self, cls: Any, obj: dict[str, Any], options: Any) -> None:
        self.writes += 1
        self.objects[obj["metadata"]["name"]] = obj

    def update(self, cls: Any, namespace: str, name: str, change: Callable[[Any], Any], options: Any) -> None:
        self.writes += 1
        self.objects[name] = change(self.objects[name])


class Estate:
    def __init__(self) -> None:
        self.ledger = Ledger()
        self.now = 1000.0
        self.recorder = EventRecorder(self.ledger, lambda: self.now)  # type: ignore[arg-type]

    def restart(self) -> None:
        self.recorder = EventRecorder(self.ledger, lambda: self.now)  # type: ignore[arg-type]

    @property
    def events(self) -> list[dict[str, Any]]:
        return list(self.ledger.objects.values())


@pytest.fixture
async def estate() -> Estate:
    return Estate()


def test_an_event_has_the_shape_of_core_v1() -> None:
    event = described(APP, "Warning", "BackOff", "restarting", "sav-01")
    assert event["involvedObject"] == {
        "apiVersion": "orch.ks-tool.dev/v1",
        "kind": "Application",
        "namespace": "default",
        "name": "web",
        "uid": "u1",
        "resourceVersion": "7",
    }
    assert event["source"] == {"component": "horchestra-agent", "host": "sav-01"}
    assert event["reportingComponent"] == "horchestra-agent"
    assert event["firstTimestamp"] == event["lastTimestamp"]
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "BackOff", 1)


def test_what_is_about_the_cluster_lies_in_the_default_namespace() -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "u2"}}
    assert described(node, "Normal", "NodeReady", "", "")["metadata"]["namespace"] == "default"


async def test_messages_that_differ_in_numbers_are_one_event(estate: Estate) -> None:
    for seconds in (10, 20, 40):
        estate.recorder(APP, "Warning", "BackOff", f"back-off {seconds}s")
    await estate.recorder.flush()
    (event,) = estate.events
    assert (event["count"], event["message"]) == (3, "back-off 40s")


async def test_a_count_is_written_at_most_every_ten_seconds_and_in_the_end_always(estate: Estate) -> None:
    estate.recorder(APP, "Warning", "BackOff", "x")
    await estate.recorder.flush()
    for _ in range(90):
        estate.now += 0.1
        estate.recorder(APP, "Warning", "BackOff", "x")
        await estate.recorder.flush()
    assert estate.ledger.writes == 1
    estate.now += 2
    await estate.recorder.flush()
    assert estate.ledger.writes == 2
    assert estate.events[0]["count"] == 91


async def test_one_object_causes_a_burst_of_writes_then_one_in_five_minutes(estate: Estate) -> None:
    for number in range(100):
        estate.recorder(APP, "Warning", f"Reason{chr(65 + number % 26)}{chr(65 + number // 26)}", "x")
        await estate.recorder.flush()
    assert estate.ledger.writes == BURST
    for _ in range(600):
        estate.now += 1
        await estate.recorder.flush()
    assert BURST + 1 <= estate.ledger.writes <= BURST + 3
    other = {**APP, "metadata": {**APP["metadata"], "uid": "u9", "name": "other"}}
    estate.recorder(other, "Normal", "Started", "x")
    before = estate.ledger.writes
    await estate.recorder.flush()
    assert estate.ledger.writes == before + 1


async def test_an_event_of_before_a_restart_is_counted_on(estate: Estate) -> None:
    estate.recorder(APP, "Warning", "BackOff", "x")
    await estate.recorder.flush()
    estate.restart()
    for _ in range(2):
        estate.recorder(APP, "Warning", "BackOff", "x")
        await estate.recorder.flush()
        estate.now += 11
    await estate.recorder.flush()
    assert estate.events[0]["count"] == 3
