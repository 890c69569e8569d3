"""The contract of watch: everything once, in order, or an error that says to list again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from horchestra.apiserver import fanout

from .door import WRITE, Door
from .test_verbs import APPS, MERGE, application, reason
from .wire import Wire

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


async def watch(door: Door, query: str = "", path: str = APPS, **headers: str) -> Wire:
    wire = await door.wire()
    wire.request("GET", f"{path}?watch=true&{query}", **headers)
    head = await wire.head()
    assert (head.code, head.header("content-type")) == (200, "application/json"), await wire.reader.read(2000)
    return wire


async def event(wire: Wire) -> tuple[str, Any]:
    line = await asyncio.wait_for(wire.line(), 5)
    assert line is not None, "the watch has ended"
    return line["type"], line["object"]


async def named(wire: Wire) -> tuple[str, str]:
    kind, obj = await event(wire)
    return kind, obj["metadata"]["name"]


async def settle(door: Door, name: str) -> None:
    """Removes an application for good, as its node's confirmation does."""
    cls = door.store.registry.kind("orch.ks-tool.dev/v1", "Application")

    def without(old: dict[str, Any]) -> dict[str, Any]:
        return {**old, "metadata": {**old["metadata"], "finalizers": []}}

    await door.store.update(cls, "default", name, without, WRITE)


async def test_a_list_and_a_watch_from_its_version_miss_nothing_and_repeat_nothing(admin: Wire, door: Door) -> None:
    await admin.ask("POST", APPS, application("a"))
    version = (await admin.ask("GET", APPS)).json()["metadata"]["resourceVersion"]
    await admin.ask("POST", APPS, application("b"))
    await admin.ask("PATCH", f"{APPS}/a", {"spec": {"image": "new"}}, MERGE)
    wire = await watch(door, f"resourceVersion={version}")
    assert [await named(wire) for _ in range(2)] == [("ADDED", "b"), ("MODIFIED", "a")]
    await admin.ask("DELETE", f"{APPS}/b")
    await settle(door, "b")
    seen = [await named(wire)]
    while seen[-1][0] != "DELETED":
        seen.append(await named(wire))
    assert seen[-1] == ("DELETED", "b")


@pytest.mark.parametrize("query", ["", "resourceVersion=0", "resourceVersion="])
async def test_a_watch_without_a_version_begins_with_what_is_there(admin: Wire, door: Door, query: str) -> None:
    await admin.ask("POST", APPS, application("a"))
    wire = await watch(door, query)
    assert await named(wire) == ("ADDED", "a")
    await admin.ask("POST", APPS, application("b"))
    assert await named(wire) == ("ADDED", "b")


async def test_a_deletion_carries_the_last_state_and_the_version_of_the_deletion(admin: Wire, door: Door) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    created = (await admin.ask("POST", path, {"metadata": {"name": "c"}, "data": {"a": "b"}})).json()
    wire = await watch(door, f"resourceVersion={created['metadata']['resourceVersion']}", path)
    await admin.ask("DELETE", f"{path}/c")
    kind, obj = await event(wire)
    assert (kind, obj["data"]) == ("DELETED", {"a": "b"})
    assert int(obj["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])


async def test_a_selector_turns_what_comes_and_goes_into_added_and_deleted(admin: Wire, door: Door) -> None:
    await admin.ask("POST", APPS, application("a"))
    wire = await watch(door, "labelSelector=team%3Dx")
    for labels in ({"team": "x"}, {"team": "x", "more": "1"}, {"team": "y"}, {"team": "x"}):
        await admin.ask("PATCH", f"{APPS}/a", {"metadata": {"labels": labels}}, MERGE)
    seen = [await event(wire) for _ in range(4)]
    assert [kind for kind, _ in seen] == ["ADDED", "MODIFIED", "DELETED", "ADDED"]
    versions = [int(obj["metadata"]["resourceVersion"]) for _, obj in seen]
    assert versions == sorted(set(versions))


async def test_a_field_selector_of_one_name_sees_that_object_alone(admin: Wire, door: Door) -> None:
    await admin.ask("POST", APPS, application("a"))
    wire = await watch(door, "fieldSelector=metadata.name%3Db&resourceVersion=0")
    await admin.ask("POST", APPS, application("c"))
    await admin.ask("POST", APPS, application("b"))
    assert await named(wire) == ("ADDED", "b")


async def test_initial_events_end_with_a_marked_bookmark(admin: Wire, door: Door) -> None:
    await admin.ask("POST", APPS, application("a"))
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    wire = await watch(door, query)
    assert await named(wire) == ("ADDED", "a")
    kind, obj = await event(wire)
    assert (kind, obj["kind"], obj["apiVersion"]) == ("BOOKMARK", "Application", "orch.ks-tool.dev/v1")
    assert obj["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert obj["metadata"]["resourceVersion"] == str(door.store.watch.revision)
    await admin.ask("POST", APPS, application("b"))
    assert await named(wire) == ("ADDED", "b")


async def test_bookmarks_come_when_nothing_happens_and_can_be_watched_from(
    admin: Wire, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "BOOKMARK_EVERY", (0.2, 0.3))
    version = door.store.watch.revision
    wire = await watch(door, f"allowWatchBookmarks=true&resourceVersion={version}")
    await admin.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "other"}})
    kind, obj = await event(wire)
    while int(obj["metadata"]["resourceVersion"]) == version:
        kind, obj = await event(wire)
    assert (kind, obj["metadata"]["resourceVersion"]) == ("BOOKMARK", str(door.store.watch.revision))
    await admin.ask("POST", APPS, application("a"))
    again = await watch(door, f"resourceVersion={obj['metadata']['resourceVersion']}")
    assert await named(again) == ("ADDED", "a")


async def test_a_version_from_the_future_is_expired(door: Door) -> None:
    wire = await watch(door, f"resourceVersion={door.store.watch.revision + 100}")
    kind, status = await event(wire)
    assert (kind, status["kind"], status["code"], status["reason"]) == ("ERROR", "Status", 410, "Expired")
    assert await wire.line() is None


async def test_a_compacted_version_is_expired(admin: Wire, door: Door) -> None:
    for name in "abc":
        await admin.ask("POST", APPS, application(name))
    door.store.watch.compact(door.store.watch.revision - 1)
    kind, status = await event(await watch(door, "resourceVersion=1"))
    assert (kind, status["code"]) == ("ERROR", 410)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("resourceVersion=abc", 400),
        ("sendInitialEvents=true", 422),
        ("resourceVersionMatch=NotOlderThan", 422),
        ("sendInitialEvents=perhaps&resourceVersionMatch=NotOlderThan", 400),
        ("timeoutSeconds=x", 400),
        ("fieldSelector=spec.image%3Dx", 400),
    ],
)
async def test_parameters_that_make_no_sense_are_refused(admin: Wire, query: str, code: int) -> None:
    assert reason(await admin.ask("GET", f"{APPS}?watch=1&{query}"))[0] == code


async def test_a_watch_ends_cleanly_after_its_timeout(door: Door) -> None:
    wire = await watch(door, "timeoutSeconds=1")
    assert await asyncio.wait_for(wire.line(), 3) is None
    assert (await wire.ask("GET", "/version")).code == 200


async def test_tables_are_watched_row_by_row(admin: Wire, door: Door) -> None:
    wire = await watch(door, Accept=TABLE)
    await admin.ask("POST", APPS, application("a"))
    kind, table = await event(wire)
    assert (kind, table["kind"], table["rows"][0]["cells"][0]) == ("ADDED", "Table", "a")
    assert table["columnDefinitions"][0]["name"] == "Name"
    assert table["rows"][0]["object"]["metadata"]["name"] == "a"


async def test_a_pod_with_a_new_uid_is_deleted_and_added(admin: Wire, door: Door) -> None:
    await admin.ask("POST", APPS, application("a", nodeName="n1"))
    wire = await watch(door, "resourceVersion=0", "/api/v1/namespaces/default/pods")
    kind, pod = await event(wire)
    assert (kind, pod["kind"], pod["spec"]["nodeName"]) == ("ADDED", "Pod", "n1")
    await admin.ask("PATCH", f"{APPS}/a", {"spec": {"nodeName": "n2"}}, MERGE)
    (first, old), (second, new) = await event(wire), await event(wire)
    assert (first, second) == ("DELETED", "ADDED")
    assert (old["metadata"]["uid"], old["spec"]["nodeName"]) == (pod["metadata"]["uid"], "n1")
    assert (new["metadata"]["uid"] == pod["metadata"]["uid"], new["spec"]["nodeName"]) == (False, "n2")
    await admin.ask("PATCH", f"{APPS}/a/status", {"status": {"restartCount": 1}}, MERGE)
    kind, restarted = await event(wire)
    assert (kind, restarted["metadata"]["uid"]) == ("MODIFIED", new["metadata"]["uid"])


async def test_a_watch_ends_when_the_server_closes(door: Door) -> None:
    wire = await watch(door)
    door.app.close()
    assert await asyncio.wait_for(wire.line(), 3) is None
    answer = await (await door.wire()).ask("GET", "/readyz")
    assert answer.code == 503


async def test_a_watcher_that_left_is_forgotten(door: Door) -> None:
    wire = await watch(door)
    assert door.store.watch._subscribers == 1
    await wire.close()
    for _ in range(50):
        if not door.store.watch._subscribers:
            break
        await asyncio.sleep(0.02)
    assert door.store.watch._subscribers == 0


async def test_a_reader_that_is_too_slow_is_told_to_list_again(admin: Wire, door: Door) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    wire = await watch(door, path=path)
    wire.writer.transport.pause_reading()
    obj = {"metadata": {"name": "c"}, "data": {"x": "a" * 900_000}}
    await admin.ask("POST", path, obj)
    for number in range(40):
        await admin.ask("PATCH", f"{path}/c", {"metadata": {"labels": {"n": str(number)}}}, MERGE)
    (subscription,) = next(iter(door.store.watch._subscriptions.values()))
    subscription.expire("too slow")
    wire.writer.transport.resume_reading()
    last: Any = None
    while (line := await asyncio.wait_for(wire.line(), 10)) is not None:
        last = line
    assert (last["type"], last["object"]["code"]) == ("ERROR", 410)


async def test_watches_that_begin_at_any_moment_see_every_change_once(door: Door) -> None:
    cls = door.store.registry.kind("v1", "ConfigMap")
    path = "/api/v1/namespaces/default/configmaps"
    log: list[tuple[int, str]] = []
    watches: list[tuple[int, bool, Wire]] = []

    async def write() -> None:
        for number in range(150):
            name = f"c{number}"
            labels = {"odd": str(number % 2)}
            meta = {"name": name, "namespace": "default", "labels": labels}
            written = await door.store.create(cls, {"metadata": meta}, WRITE)
            log.append((int(written.obj["metadata"]["resourceVersion"]), name))

    writing = asyncio.create_task(write())
    while not writing.done():
        since, odd = door.store.watch.revision, len(watches) % 2 == 1
        query = f"resourceVersion={max(since - 5, 1)}" + ("&labelSelector=odd%3D1" if odd else "")
        watches.append((max(since - 5, 1), odd, await watch(door, query, path)))
    await writing
    assert len(watches) > 10
    for since, odd, wire in watches:
        expected = [(at, name) for at, name in log if at > since and (not odd or int(name[1:]) % 2)]
        seen = []
        while len(seen) < len(expected):
            kind, obj = await event(wire)
            assert kind == "ADDED"
            seen.append((int(obj["metadata"]["resourceVersion"]), obj["metadata"]["name"]))
        assert seen == expected
