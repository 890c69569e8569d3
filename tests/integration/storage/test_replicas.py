"""Several controllers on one PostgreSQL."""

from __future__ import annotations

import asyncio

import pytest

from horchestra.apimachinery.admission import SYSTEM
from horchestra.apimachinery.errors import StatusError
from horchestra.storage.store import DeleteOptions, Store
from tests.integration.storage.conftest import OPTIONS, Estate, eventually
from tests.integration.storage.kinds import Widget, widget
from tests.integration.storage.test_watch import drain
from tests.integration.storage.test_writes import edit

pytestmark = pytest.mark.parametrize("estate", ["postgresql"], indirect=True)


@pytest.fixture
async def other(store: Store, estate: Estate) -> Store:
    return await estate.start()


async def test_what_one_replica_commits_reaches_the_others_watchers(store: Store, other: Store) -> None:
    assert other.lineage == store.lineage
    subscription = other.watch.subscribe(Widget)
    made = await store.create(Widget, widget("a"), OPTIONS)
    async with asyncio.timeout(0.5):
        (event,) = await subscription.next_batch()
    assert event.entry.body == made.body
    changed = await store.update(Widget, "default", "a", edit(size=2), OPTIONS)
    (event,) = await subscription.next_batch()
    assert event.previous is not None
    assert (event.previous.body, event.entry.body) == (made.body, changed.body)
    await store.delete(Widget, "default", "a", DeleteOptions(SYSTEM))
    (event,) = await subscription.next_batch()
    assert other.watch.list(Widget) == []


async def test_a_read_that_must_be_current_waits_for_memory(store: Store, other: Store) -> None:
    for i in range(20):
        made = await store.create(Widget, widget(f"w{i}"), OPTIONS)
        revision = int(made.obj["metadata"]["resourceVersion"])
        reached = await asyncio.gather(*(other.watch.caught_up() for _ in range(5)))
        assert all(r >= revision for r in reached)
        assert other.watch.get(Widget, "default", f"w{i}") is not None


async def test_admission_of_one_replica_sees_what_the_other_committed(store: Store, other: Store) -> None:
    await store.create(Widget, widget("a", size=60, note="admitted"), OPTIONS)
    with pytest.raises(StatusError) as caught:
        await other.create(Widget, widget("b", size=60, note="admitted"), OPTIONS)
    assert caught.value.reason == "Forbidden"
    with pytest.raises(StatusError) as caught:
        await other.create(Widget, widget("a"), OPTIONS)
    assert caught.value.reason == "AlreadyExists"
    await other.create(Widget, widget("u", uses=["a"]), OPTIONS)
    assert not (await store.delete(Widget, "default", "a", DeleteOptions(SYSTEM))).gone
    await other.delete(Widget, "default", "u", DeleteOptions(SYSTEM))
    await store.watch.caught_up()
    assert store.watch.list(Widget) == []


async def test_writers_of_two_replicas_share_one_order_without_gaps(store: Store, other: Store) -> None:
    since = store.watch.revision
    await other.watch.caught_up()
    watching = [s.watch.subscribe(Widget, since=since, limit=100_000) for s in (store, other)]

    async def write(replica: Store, writer: int) -> None:
        for i in range(20):
            name = f"{writer}-{i}"
            await replica.create(Widget, widget(name), OPTIONS)
            await replica.update(Widget, "default", name, edit(size=2), OPTIONS)

    async with asyncio.TaskGroup() as writers:
        for writer in range(16):
            writers.create_task(write((store, other)[writer % 2], writer))
    last = await store.watch.caught_up()
    seen = [await drain(subscription, last) for subscription in watching]
    assert last == since + 16 * 20 * 2
    assert [e.revision for e in seen[0]] == list(range(since + 1, last + 1))
    assert [e.line for e in seen[0]] == [e.line for e in seen[1]]


async def test_a_replica_that_was_cut_off_catches_up(store: Store, other: Store, estate: Estate) -> None:
    where = "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    await asyncio.to_thread(estate.query, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity {where}")
    await store.create(Widget, widget("a"), OPTIONS)
    await eventually(lambda: other.watch.get(Widget, "default", "a"))


async def test_a_replica_whose_revisions_were_compacted_starts_over(store: Store, other: Store, estate: Estate) -> None:
    subscription = other.watch.subscribe(Widget)
    await store.create(Widget, widget("a"), OPTIONS)
    await subscription.next_batch()
    await asyncio.to_thread(
        estate.query,
        "WITH gone AS (DELETE FROM horchestra_revision) UPDATE horchestra_counter "
        "SET value = value + 10, compacted = value + 10",
    )
    await store.create(Widget, widget("b"), OPTIONS)
    await eventually(lambda: other.watch.get(Widget, "default", "b"))
    with pytest.raises(StatusError) as caught:
        await subscription.next_batch()
    assert caught.value.reason == "Expired"
