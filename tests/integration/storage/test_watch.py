"""What watchers are promised: every event once, in order, or the word that it cannot be had."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from horchestra.apimachinery.admission import SYSTEM
from horchestra.apimachinery.errors import StatusError
from horchestra.apimachinery.selectors import FieldSelector, LabelSelector
from horchestra.storage.entry import EventType
from horchestra.storage.store import DeleteOptions, Store
from horchestra.storage.watch import Event, Subscription
from tests.integration.storage.conftest import OPTIONS, Estate, eventually
from tests.integration.storage.kinds import Vault, Widget, widget
from tests.integration.storage.test_writes import edit

Json = dict[str, Any]


async def drain(subscription: Subscription, upto: int) -> list[Event]:
    """Events until a revision was seen."""
    found: list[Event] = []
    async with asyncio.timeout(10):
        while not found or found[-1].revision < upto:
            found += await subscription.next_batch()
    return found


async def change_things(store: Store) -> None:
    for name in ("a", "b", "c"):
        await store.create(Widget, widget(name), OPTIONS)
    await store.create(Vault, {"metadata": {"name": "v"}}, OPTIONS)
    await store.update(Widget, "default", "a", edit(size=2), OPTIONS)
    await store.delete(Widget, "default", "b", DeleteOptions(SYSTEM))


async def test_a_watch_from_a_list_misses_nothing_and_repeats_nothing(store: Store) -> None:
    await store.create(Widget, widget("x"), OPTIONS)
    since = store.watch.revision
    await change_things(store)
    subscription = store.watch.subscribe(Widget, "default", since)
    await store.create(Widget, widget("d"), OPTIONS)
    events = await drain(subscription, store.watch.revision)
    assert [(e.type.value, e.entry.name) for e in events] == [
        ("ADDED", "a"),
        ("ADDED", "b"),
        ("ADDED", "c"),
        ("MODIFIED", "a"),
        ("DELETED", "b"),
        ("ADDED", "d"),
    ]
    assert [e.revision for e in events] == sorted({e.revision for e in events})
    for event in events:
        assert event.entry.obj["metadata"]["resourceVersion"] == str(event.revision)
        line = json.loads(event.line)
        assert line == {"type": event.type.value, "object": event.entry.obj}
        assert event.line.endswith(b"}\n")
    modified = events[3]
    assert modified.previous is not None
    assert (modified.previous.obj["spec"]["size"], modified.entry.obj["spec"]["size"]) == (1, 2)


async def test_one_watch_of_everything_is_in_order(store: Store) -> None:
    since = store.watch.revision
    await change_things(store)
    events = await drain(store.watch.subscribe(None, since=since), store.watch.revision)
    assert [e.revision for e in events] == list(range(since + 1, store.watch.revision + 1))


async def test_from_now_on_means_what_is_committed_later(store: Store) -> None:
    await change_things(store)
    subscription = store.watch.subscribe(Widget)
    await store.create(Widget, widget("later"), OPTIONS)
    assert [e.entry.name for e in await subscription.next_batch()] == ["later"]


@pytest.mark.parametrize("ahead", [1, 10**9])
async def test_a_version_from_the_future_is_expired(store: Store, ahead: int) -> None:
    with pytest.raises(StatusError) as caught:
        store.watch.subscribe(Widget, since=store.watch.revision + ahead)
    assert (caught.value.code, caught.value.reason) == (410, "Expired")


async def test_restarting_keeps_the_history(store: Store, estate: Estate) -> None:
    since = store.watch.revision
    await change_things(store)
    before = [(e.line, e.previous and e.previous.body) for e in store.watch.subscribe(None, since=since)._batches[0]]
    revision, lineage = store.watch.revision, store.lineage
    await estate.stop(store)
    again = await estate.start()
    assert (again.watch.revision, again.lineage) == (revision, lineage)
    replayed = again.watch.subscribe(None, since=since)._batches[0]
    assert [(e.line, e.previous and e.previous.body) for e in replayed] == before
    assert {e.name for e in again.watch.list(Widget)} == {"a", "c"}
    await again.update(Widget, "default", "a", edit(size=3), OPTIONS)
    assert again.watch.revision == revision + 1


async def test_history_is_forgotten_in_time_and_a_watch_outlives_it(store: Store, estate: Estate) -> None:
    await estate.stop(store)
    short = await estate.start(history=0.3)
    since = short.watch.revision
    subscription = short.watch.subscribe(Widget, since=since)
    await change_things(short)
    await eventually(lambda: short.watch._compacted >= short.watch.revision)
    with pytest.raises(StatusError) as caught:
        short.watch.subscribe(Widget, since=since)
    assert caught.value.reason == "Expired"
    assert str(since) in caught.value.message
    assert await asyncio.to_thread(estate.query, "SELECT count(*) FROM horchestra_revision") == [(0,)]
    assert short.watch.subscribe(Widget, since=short.watch.revision)
    await short.create(Widget, widget("d"), OPTIONS)
    events = await drain(subscription, short.watch.revision)
    assert [e.entry.name for e in events] == ["a", "b", "c", "a", "b", "d"]
    await estate.stop(short)
    again = await estate.start()
    with pytest.raises(StatusError):
        again.watch.subscribe(Widget, since=since)


async def test_a_slow_reader_is_told_that_it_missed_something_and_others_are_not_hurt(store: Store) -> None:
    slow = store.watch.subscribe(Widget, limit=10)
    quick = store.watch.subscribe(Widget, limit=10)
    seen: list[Event] = []

    async def read() -> None:
        while len(seen) < 40:
            seen.extend(await quick.next_batch())

    reading = asyncio.create_task(read())
    for i in range(40):
        await store.create(Widget, widget(f"w{i}"), OPTIONS)
    async with asyncio.timeout(5):
        await reading
    assert len(seen) == 40
    with pytest.raises(StatusError) as caught:
        await slow.next_batch()
    assert (caught.value.code, caught.value.reason) == (410, "Expired")
    with pytest.raises(StatusError):
        await slow.next_batch()


async def test_closing_ends_a_waiting_reader(store: Store) -> None:
    subscription = store.watch.subscribe(Widget)
    found: list[Event] = []

    async def read() -> None:
        async for event in subscription:
            found.append(event)

    reading = asyncio.create_task(read())
    await store.create(Widget, widget("a"), OPTIONS)
    await eventually(lambda: found)
    subscription.close()
    async with asyncio.timeout(5):
        await reading
    await store.create(Widget, widget("b"), OPTIONS)
    assert [e.entry.name for e in found] == ["a"]


async def test_closing_the_store_ends_all_readers(store: Store, estate: Estate) -> None:
    subscription = store.watch.subscribe(Widget)
    reading = asyncio.create_task(subscription.next_batch())
    await asyncio.sleep(0)
    await estate.stop(store)
    async with asyncio.timeout(5):
        with pytest.raises(StopAsyncIteration):
            await subscription.next_batch()
        with pytest.raises(StopAsyncIteration):
            await reading
    with pytest.raises(StatusError) as caught:
        await store.create(Widget, widget("a"), OPTIONS)
    assert caught.value.reason == "ServiceUnavailable"


async def test_readers_of_one_scope_share_batches_and_their_bytes(store: Store) -> None:
    readers = [store.watch.subscribe(Widget, "default") for _ in range(3)]
    await store.create(Widget, widget("a"), OPTIONS)
    batches = [await reader.next_batch() for reader in readers]
    assert batches[0] is batches[1] is batches[2]
    assert batches[0].lines is batches[1].lines
    assert batches[0].lines == batches[0][0].line


async def test_lists_are_ordered_snapshots_with_the_version_to_watch_from(store: Store) -> None:
    for i in (5, 3, 9, 1):
        obj = widget(f"w{i}", size=i)
        obj["metadata"]["labels"] = {"odd": "yes", "big": str(i > 4).lower()}
        await store.create(Widget, obj, OPTIONS)
    listed = store.watch.list(Widget)
    assert [e.name for e in listed] == ["w1", "w3", "w5", "w9"]
    await store.delete(Widget, "default", "w3", DeleteOptions(SYSTEM))
    assert len(listed) == 4
    body = json.loads(b"".join(store.watch.list_body(Widget, "default")))
    assert body["kind"] == "WidgetList"
    assert body["apiVersion"] == "test.example/v1"
    assert body["metadata"]["resourceVersion"] == str(store.watch.revision)
    assert body["items"] == [e.obj for e in store.watch.list(Widget)]
    assert store.watch.list(Widget, "elsewhere") == []
    big = LabelSelector.parse("big=true")
    assert [e.name for e in store.watch.list(Widget, labels=big)] == ["w5", "w9"]
    five = FieldSelector.parse("metadata.name=w5", {})
    items = json.loads(b"".join(store.watch.list_body(Widget, None, big, five)))["items"]
    assert [o["metadata"]["name"] for o in items] == ["w5"]


async def test_entries_and_events_keep_their_bytes_when_memory_drops_the_rest(store: Store) -> None:
    await store.create(Widget, widget("a", note="first"), OPTIONS)
    old = store.watch.get(Widget, "default", "a")
    assert old is not None
    await store.update(Widget, "default", "a", edit(note="second"), OPTIONS)
    assert old.obj["spec"]["note"] == "first"


async def test_an_event_of_a_dry_run_does_not_exist(store: Store) -> None:
    subscription = store.watch.subscribe(None)
    await store.transaction(lambda t: None)
    await store.create(Widget, widget("a"), OPTIONS)
    events = await subscription.next_batch()
    assert [(e.type, e.entry.name) for e in events] == [(EventType.ADDED, "a")]
