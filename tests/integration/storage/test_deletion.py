"""Two phases, holds, force, owners and their dependents."""

from __future__ import annotations

from typing import Any, Literal

from horchestra.apimachinery.admission import SYSTEM
from horchestra.kinds.namespace import Namespace
from horchestra.storage.entry import EventType
from horchestra.storage.store import DeleteOptions, Store, Written
from tests.integration.storage.conftest import OPTIONS, eventually
from tests.integration.storage.kinds import Anchor, Widget, owned, widget
from tests.integration.storage.test_writes import edit, refused

Json = dict[str, Any]


async def delete(
    store: Store,
    name: str,
    propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
    grace: int | None = None,
) -> Written:
    options = DeleteOptions(SYSTEM, propagation=propagation, grace_period_seconds=grace)
    return await store.delete(Widget, "default", name, options)


async def create(store: Store, obj: Json, *finalizers: str) -> Json:
    if finalizers:
        obj["metadata"]["finalizers"] = list(finalizers)
    return (await store.create(Widget, obj, OPTIONS)).obj


async def finalize(store: Store, name: str, *left: str) -> Written:
    def change(obj: Json) -> Json:
        obj["metadata"]["finalizers"] = list(left)
        return obj

    return await store.update(Widget, "default", name, change, OPTIONS)


def names(store: Store) -> set[str]:
    return {e.name for e in store.watch.list(Widget)}


def obj(store: Store, name: str) -> Json:
    entry = store.watch.get(Widget, "default", name)
    assert entry is not None
    return entry.obj


async def test_finalizers_hold_a_deleted_object_until_the_last_is_gone(store: Store) -> None:
    await create(store, widget("a"), "x.example/1", "x.example/2")
    marked = await delete(store, "a", grace=7)
    assert not marked.gone
    assert marked.obj["metadata"]["deletionTimestamp"]
    assert marked.obj["metadata"]["deletionGracePeriodSeconds"] == 7
    assert marked.obj["metadata"]["generation"] == 1
    again = await delete(store, "a")
    assert (again.gone, again.changed) == (False, False)
    shorter = await delete(store, "a", grace=3)
    assert shorter.obj["metadata"]["deletionGracePeriodSeconds"] == 3
    assert shorter.obj["metadata"]["deletionTimestamp"] == marked.obj["metadata"]["deletionTimestamp"]
    error = await refused(finalize(store, "a", "x.example/1", "x.example/2", "x.example/3"))
    assert error.causes[0].field == "metadata.finalizers"
    assert "no new finalizers can be added if the object is being deleted" in error.message
    exists = await refused(store.create(Widget, widget("a"), OPTIONS))
    assert exists.message.startswith("object is being deleted: ")
    assert not (await finalize(store, "a", "x.example/2")).gone
    last = await finalize(store, "a")
    assert last.gone
    assert names(store) == set()


async def test_a_terminating_object_that_breaks_newer_rules_can_still_let_go(store: Store) -> None:
    await create(store, widget("a", size=60), "x.example/1")
    await create(store, widget("b", size=60))
    await delete(store, "a")

    def change(o: Json) -> Json:
        o["metadata"]["finalizers"] = []
        return o

    assert (await store.update(Widget, "default", "a", change, OPTIONS)).gone


async def test_the_kind_may_refuse_a_deletion(store: Store) -> None:
    await create(store, widget("a", note="undeletable"))
    assert (await refused(delete(store, "a"))).reason == "Forbidden"
    assert names(store) == {"a"}


async def test_force_does_not_wait_for_the_finalizers_of_the_server(store: Store) -> None:
    def release(obj: Json) -> Json:
        obj["metadata"]["finalizers"].remove("x.example/1")
        return obj

    force = DeleteOptions(SYSTEM, grace_period_seconds=0)
    await store.create(Anchor, {"metadata": {"name": "a"}}, OPTIONS)
    assert not (await store.delete(Anchor, "", "a", DeleteOptions(SYSTEM))).gone
    assert (await store.delete(Anchor, "", "a", force)).gone
    made = await store.create(Anchor, {"metadata": {"name": "b", "finalizers": ["x.example/1"]}}, OPTIONS)
    assert made.obj["metadata"]["finalizers"] == ["x.example/1", "orch.ks-tool.dev/test"]
    assert not (await store.delete(Anchor, "", "b", force)).gone
    assert (await store.update(Anchor, "", "b", release, OPTIONS)).gone
    await store.create(Namespace, {"metadata": {"name": "n"}}, OPTIONS)
    assert not (await store.delete(Namespace, "", "n", force)).gone


async def test_what_is_held_is_terminating_until_its_last_user_goes(store: Store) -> None:
    await create(store, widget("a"))
    await create(store, widget("u1", uses=["a"]))
    await create(store, widget("u2", uses=["a"]))
    await create(store, widget("u3", uses=["a"]))
    held = await delete(store, "a")
    assert not held.gone
    assert held.obj["metadata"]["finalizers"] == ["orch.ks-tool.dev/in-use"]
    assert held.warnings == [
        'widget "a" is used by widget "u1", widget "u2", widget "u3"; it goes when the last of them goes'
    ]
    assert not (await delete(store, "a", grace=0)).gone
    await store.update(Widget, "default", "u1", edit(uses=[]), OPTIONS)
    assert names(store) >= {"a", "u1"}
    await delete(store, "u2")
    assert "a" in names(store)
    late = await store.create(Widget, widget("u4", uses=["a"]), OPTIONS)
    assert late.warnings == ['spec.uses[0]: widget "a" is being deleted']
    await delete(store, "u3")
    assert "a" in names(store)
    await store.update(Widget, "default", "u4", edit(uses=["b"]), OPTIONS)
    assert names(store) == {"u1", "u4"}


async def test_a_client_cannot_end_what_is_held_by_sending_no_finalizers(store: Store) -> None:
    await create(store, widget("a"))
    await create(store, widget("u", uses=["a"]))
    await delete(store, "a")
    assert not (await finalize(store, "a")).gone
    assert obj(store, "a")["metadata"]["finalizers"] == ["orch.ks-tool.dev/in-use"]
    await delete(store, "u")
    assert names(store) == set()


async def test_a_user_that_is_itself_terminating_still_holds(store: Store) -> None:
    await create(store, widget("a"))
    await create(store, widget("u", uses=["a"]), "x.example/1")
    await delete(store, "u")
    assert not (await delete(store, "a")).gone
    await finalize(store, "u")
    assert names(store) == set()


async def test_the_release_is_in_the_transaction_that_removes_the_last_user(store: Store) -> None:
    await create(store, widget("a"))
    await create(store, widget("u", uses=["a"]))
    await delete(store, "a")
    subscription = store.watch.subscribe(Widget)
    await delete(store, "u")
    batch = await subscription.next_batch()
    assert [(e.type, e.entry.name) for e in batch] == [(EventType.DELETED, "u"), (EventType.DELETED, "a")]


async def test_a_mentioned_object_goes_with_a_warning(store: Store) -> None:
    await create(store, widget("a"))
    for i in range(7):
        await create(store, widget(f"u{i}", mentions=["a"]))
    gone = await delete(store, "a")
    assert gone.gone
    assert gone.warnings == [
        'widget "a" is used by widget "u0", widget "u1", widget "u2", widget "u3", widget "u4" and 2 more'
    ]


async def test_an_object_does_not_hold_itself(store: Store) -> None:
    await create(store, widget("a", uses=["a"]))
    assert (await delete(store, "a")).gone


async def test_dependents_go_with_their_owner(store: Store) -> None:
    owner = await create(store, widget("owner"))
    other = await create(store, widget("other"))
    child = await create(store, owned("child", owner))
    await create(store, owned("grandchild", child))
    await create(store, owned("shared", owner, other))
    await create(store, owned("kept", owner), "x.example/1")
    assert (await delete(store, "owner")).gone
    assert names(store) == {"other", "shared", "kept"}
    assert [o["name"] for o in obj(store, "shared")["metadata"]["ownerReferences"]] == ["other"]
    assert "deletionTimestamp" in obj(store, "kept")["metadata"]


async def test_a_long_chain_of_owners_is_collected(store: Store) -> None:
    def chain(t: Any) -> Json:
        first = last = t.create(Widget, widget("c0"), OPTIONS).obj
        for i in range(1, 1100):
            last = t.create(Widget, owned(f"c{i}", last), OPTIONS).obj
        return first  # type: ignore[no-any-return]

    await store.transaction(chain)
    await delete(store, "c0", "Foreground")
    assert names(store) == set()


async def test_owners_in_a_circle_are_collected(store: Store) -> None:
    a = await create(store, widget("a"))
    b = await create(store, owned("b", a))

    def close(o: Json) -> Json:
        o["metadata"]["ownerReferences"] = owned("x", b)["metadata"]["ownerReferences"]
        return o

    await store.update(Widget, "default", "a", close, OPTIONS)
    assert (await delete(store, "a")).gone
    assert names(store) == set()


async def test_orphaned_dependents_stay_without_an_owner(store: Store) -> None:
    owner = await create(store, widget("owner"))
    await create(store, owned("child", owner))
    assert (await delete(store, "owner", "Orphan")).gone
    assert names(store) == {"child"}
    assert "ownerReferences" not in obj(store, "child")["metadata"]


async def test_in_the_foreground_the_owner_waits_for_blocking_dependents(store: Store) -> None:
    owner = await create(store, widget("owner"))
    await create(store, owned("blocking", owner, block=True), "x.example/1")
    await create(store, owned("free", owner), "x.example/1")
    await create(store, owned("quick", owner, block=True))
    waiting = await delete(store, "owner", "Foreground")
    assert not waiting.gone
    assert obj(store, "owner")["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert names(store) == {"owner", "blocking", "free"}
    for name in ("blocking", "free"):
        assert "deletionTimestamp" in obj(store, name)["metadata"]
    await finalize(store, "blocking")
    assert names(store) == {"free"}


async def circle(store: Store, *names: str, held: dict[str, str] | None = None) -> None:
    """Each widget owns the next, the last owns the first."""
    made = [await create(store, widget(name), *filter(None, [(held or {}).get(name)])) for name in names]
    for owner, dependent in zip([made[-1], *made], made, strict=False):
        references = owned("x", owner, block=True)["metadata"]["ownerReferences"]

        def own(o: Json, references: list[Json] = references) -> Json:
            o["metadata"].setdefault("ownerReferences", []).extend(references)
            return o

        await store.update(Widget, "default", dependent["metadata"]["name"], own, OPTIONS)


async def test_owners_that_wait_for_nothing_but_one_another_go(store: Store) -> None:
    for circles in (["self"], ["a", "b"], ["a", "b", "c", "d"]):
        await circle(store, *circles)
        assert (await delete(store, circles[0], "Foreground")).gone
        assert names(store) == set()


async def test_a_circle_of_owners_waits_for_what_something_else_keeps(store: Store) -> None:
    await circle(store, "a", "b", held={"b": "x.example/1"})
    assert not (await delete(store, "a", "Foreground")).gone
    assert names(store) == {"a", "b"}
    await finalize(store, "b", "foregroundDeletion")
    assert names(store) == set()


async def test_a_circle_waits_for_a_dependent_outside_of_it(store: Store) -> None:
    await circle(store, "a", "b")
    await create(store, owned("child", obj(store, "b"), block=True), "x.example/1")
    assert not (await delete(store, "a", "Foreground")).gone
    assert names(store) == {"a", "b", "child"}
    await finalize(store, "child")
    assert names(store) == set()


async def test_a_finalizer_of_the_server_that_a_client_forged_keeps_nothing(store: Store) -> None:
    await create(store, widget("a"), "orch.ks-tool.dev/in-use", "foregroundDeletion")
    assert (await delete(store, "a")).gone


async def test_in_the_foreground_without_dependents_nothing_waits(store: Store) -> None:
    await create(store, widget("owner"))
    assert (await delete(store, "owner", "Foreground")).gone


async def test_a_waiting_owner_goes_when_a_dependent_is_disowned(store: Store) -> None:
    owner = await create(store, widget("owner"))
    await create(store, owned("child", owner, block=True), "x.example/1")
    await delete(store, "owner", "Foreground")

    def disown(o: Json) -> Json:
        del o["metadata"]["ownerReferences"]
        return o

    await store.update(Widget, "default", "child", disown, OPTIONS)
    assert names(store) == {"child"}


async def test_what_is_created_for_an_owner_that_went_is_collected(store: Store) -> None:
    owner = await create(store, widget("owner"))
    await delete(store, "owner")
    await store.create(Widget, owned("late", owner), OPTIONS)
    await eventually(lambda: names(store) == set())
    foreign = owned("foreign", owner)
    foreign["metadata"]["ownerReferences"][0].update(apiVersion="apps/v1", kind="Deployment")
    await store.create(Widget, foreign, OPTIONS)
    await create(store, widget("last"))
    assert names(store) == {"foreign", "last"}


async def test_a_deleted_event_carries_the_last_state_and_its_own_version(store: Store) -> None:
    made = await create(store, widget("a", note="x"))
    subscription = store.watch.subscribe(Widget)
    await delete(store, "a")
    (event,) = await subscription.next_batch()
    assert event.type is EventType.DELETED
    assert event.entry.obj["spec"]["note"] == "x"
    assert int(event.entry.obj["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert event.previous is not None
    assert event.previous.obj == made
