"""Groups, crashes and faults: what was acknowledged is there, what was not is told, nothing is half done."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from horchestra.apimachinery.admission import SYSTEM
from horchestra.apimachinery.errors import StatusError
from horchestra.storage.store import DeleteOptions, Store, Transaction
from horchestra.storage.watch import Event
from tests.integration.storage.conftest import OPTIONS, Estate, eventually
from tests.integration.storage.kinds import Widget, widget
from tests.integration.storage.test_watch import drain
from tests.integration.storage.test_writes import edit

ROOT = Path(__file__).parents[3]


async def test_32_writers_lose_no_event_and_commit_in_order(store: Store, estate: Estate) -> None:
    since = store.watch.revision
    live = store.watch.subscribe(Widget, limit=100_000)
    acknowledged: list[int] = []

    async def write(writer: int) -> None:
        for i in range(25):
            name = f"w{writer}-{i}"
            made = await store.create(Widget, widget(name), OPTIONS)
            acknowledged.append(int(made.obj["metadata"]["resourceVersion"]))
            entry = store.watch.get(Widget, "default", name)
            assert entry is not None, "an acknowledged write is in memory"
            changed = await store.update(Widget, "default", name, edit(size=i % 5 + 2), OPTIONS)
            acknowledged.append(int(changed.obj["metadata"]["resourceVersion"]))
            if i % 3 == 0:
                gone = await store.delete(Widget, "default", name, DeleteOptions(SYSTEM))
                acknowledged.append(int(gone.obj["metadata"]["resourceVersion"]))

    async with asyncio.TaskGroup() as writers:
        for writer in range(32):
            writers.create_task(write(writer))
    last = store.watch.revision
    assert sorted(acknowledged) == list(range(since + 1, last + 1))
    events = await drain(live, last)
    assert [e.revision for e in events] == list(range(since + 1, last + 1))
    replayed = await drain(store.watch.subscribe(Widget, since=since), last)
    assert [e.line for e in replayed] == [e.line for e in events]
    logged = await asyncio.to_thread(
        estate.query, "SELECT id FROM horchestra_revision WHERE id > %s ORDER BY id", since
    )
    assert [row[0] for row in logged] == list(range(since + 1, last + 1))
    stored = await asyncio.to_thread(
        estate.query, "SELECT name, revision FROM horchestra_object WHERE resource = 'widgets.test.example'"
    )
    assert dict(stored) == {e.name: e.revision for e in store.watch.list(Widget)}


async def test_a_failing_write_undoes_only_itself(store: Store) -> None:
    before = store.watch.revision

    def broken(t: Transaction) -> None:
        t.create(Widget, widget("never"), OPTIONS)
        raise ZeroDivisionError

    calls: list[Any] = []
    for i in range(20):
        calls.append(store.create(Widget, widget(f"w{i}"), OPTIONS))
        calls.append(store.transaction(broken))
        calls.append(store.create(Widget, widget(f"w{i}", size=-1), OPTIONS))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(o, BaseException) for o in outcomes] == [False, True, True] * 20
    assert store.watch.get(Widget, "default", "never") is None
    assert len(store.watch.list(Widget)) == 20
    assert store.watch.revision == before + 20


async def test_a_transaction_is_all_or_nothing_and_sees_its_own_writes(store: Store) -> None:
    await store.create(Widget, widget("a"), OPTIONS)

    def several(t: Transaction) -> int:
        t.create(Widget, widget("b", uses=["a"]), OPTIONS)
        t.update(Widget, "default", "b", edit(size=3), OPTIONS)
        t.delete(Widget, "default", "a", DeleteOptions(SYSTEM))
        assert [o["metadata"]["name"] for o in t.referrers("widgets.test.example", "default", "a")] == ["b"]
        assert len(list(t.list("widgets.test.example", "default"))) == 2
        found = t.get("widgets.test.example", "default", "b")
        assert found is not None
        return int(found["spec"]["size"])

    assert await store.transaction(several) == 3
    revision = store.watch.revision

    def failing(t: Transaction) -> None:
        t.delete(Widget, "default", "b", DeleteOptions(SYSTEM))
        t.update(Widget, "default", "nothing", edit(), OPTIONS)

    with pytest.raises(StatusError):
        await store.transaction(failing)
    assert store.watch.revision == revision
    assert {e.name for e in store.watch.list(Widget)} == {"a", "b"}
    await store.delete(Widget, "default", "b", DeleteOptions(SYSTEM))
    assert store.watch.list(Widget) == []


async def test_no_acknowledged_write_is_lost_when_the_process_is_killed(store: Store, estate: Estate) -> None:
    await estate.stop(store)
    command = [sys.executable, "-m", "tests.integration.storage.writing", str(estate.directory)]
    if estate.url:
        command.append(estate.url)
    heard = await asyncio.to_thread(_run_and_kill, command)
    assert len(heard) > 50
    again = await estate.start()
    for line in heard:
        name, revision = line.split()
        entry = again.watch.get(Widget, "default", name)
        assert entry is not None, f"{name} was acknowledged"
        assert entry.revision == int(revision)
        assert entry.obj["spec"]["note"] == "acknowledged"
    log = await drain(again.watch.subscribe(Widget, since=1), again.watch.revision)
    assert [e.revision for e in log] == list(range(2, again.watch.revision + 1))
    newest = {e.entry.name: e.revision for e in log}
    assert newest == {e.name: e.revision for e in again.watch.list(Widget)}, "objects and log agree"


def _run_and_kill(command: list[str]) -> list[str]:
    """Lines that the program completed before it was killed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(0.7)
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
        process.wait()
    return (first + rest).decode().rpartition("\n")[0].splitlines()


@pytest.mark.parametrize("estate", ["sqlite"], indirect=True)
async def test_a_full_disk_fails_the_group_cleanly(store: Store) -> None:
    subscription = store.watch.subscribe(None)
    await store.create(Widget, widget("before"), OPTIONS)
    before = store.watch.revision

    def limited(t: Transaction) -> None:
        raw: sqlite3.Connection = connections["default"].connection
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
        raw.execute(f"PRAGMA max_page_count = {pages + 2}")

    await store.transaction(limited)
    big = [store.create(Widget, widget(f"w{i}", note="x" * 100_000), OPTIONS) for i in range(5)]
    outcomes = await asyncio.gather(*big, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, StatusError)
        assert outcome.reason == "ServiceUnavailable"
        assert "full" in outcome.message
    assert store.watch.revision == before
    await store.create(Widget, widget("after"), OPTIONS)
    assert store.watch.revision == before + 1
    assert [e.name for e in store.watch.list(Widget)] == ["after", "before"]
    events: list[Event] = []
    while len(events) < 2:
        events += await subscription.next_batch()
    assert [e.entry.name for e in events] == ["before", "after"]


@pytest.mark.parametrize("estate", ["postgresql"], indirect=True)
async def test_a_lost_connection_is_made_again(store: Store, estate: Estate) -> None:
    await store.create(Widget, widget("before"), OPTIONS)
    where = "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    await asyncio.to_thread(estate.query, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity {where}")
    await store.create(Widget, widget("after"), OPTIONS)
    assert len(store.watch.list(Widget)) == 2

    def cut(t: Transaction) -> None:
        t.create(Widget, widget("cut"), OPTIONS)
        connections["default"].connection.close()

    with pytest.raises(StatusError) as caught:
        await store.transaction(cut)
    assert caught.value.reason == "ServiceUnavailable"
    assert store.watch.get(Widget, "default", "cut") is None
    await store.create(Widget, widget("again"), OPTIONS)
    assert {e.name for e in store.watch.list(Widget)} == {"before", "after", "again"}


async def test_a_commit_whose_answer_was_lost_is_found_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is told that it failed, but what did get through becomes visible, once, with the next write."""
    subscription = store.watch.subscribe(Widget)
    raised = False

    def lose(t: Transaction) -> None:
        t.create(Widget, widget("committed"), OPTIONS)
        connection = connections["default"]
        commit = type(connection)._commit

        def commit_and_fail() -> None:
            nonlocal raised
            commit(connection)
            if not raised:
                raised = True
                raise OSError("the answer to COMMIT was lost")

        monkeypatch.setattr(connection, "_commit", commit_and_fail)

    with pytest.raises(StatusError):
        await store.transaction(lose)
    assert store.watch.get(Widget, "default", "committed") is None
    await store.create(Widget, widget("next"), OPTIONS)
    events: list[Event] = []
    while len(events) < 2:
        events += await subscription.next_batch()
    assert [e.entry.name for e in events] == ["committed", "next"]
    assert [e.revision for e in events] == [store.watch.revision - 1, store.watch.revision]


async def test_a_caller_who_gives_up_does_not_take_the_write_back(store: Store) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await store.create(Widget, widget("a"), OPTIONS)
    call = asyncio.create_task(store.create(Widget, widget("b"), OPTIONS))
    await asyncio.sleep(0)
    call.cancel()
    await eventually(lambda: store.watch.get(Widget, "default", "b"))


async def test_more_waiting_writes_than_allowed_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horchestra.storage.store.WAITING", 10)
    calls = [store.create(Widget, widget(f"w{i}"), OPTIONS) for i in range(15)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [o for o in outcomes if isinstance(o, StatusError)]
    assert [o.reason for o in refused] == ["TooManyRequests"] * 5
    await store.create(Widget, widget("later"), OPTIONS)
