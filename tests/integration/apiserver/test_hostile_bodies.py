"""Whatever a body holds, the answer is a Status that is small, says why, and comes soon; and never a 500."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from horchestra.apimachinery.codec import MAX_VALUES
from horchestra.apimachinery.errors import MAX_CAUSES

from .door import Door
from .wire import Answer, Wire

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
NAMESPACED = "/api/v1/namespaces/default"
APPS = "/apis/orch.ks-tool.dev/v1/namespaces/default/applications"
VOLUMES = "/apis/orch.ks-tool.dev/v1/persistentvolumes"
SENTINEL = "a-secret-value"
LARGEST_ANSWER = 200_000
META: dict[str, Any] = {
    "name": "w1",
    "generateName": "w",
    "uid": "u",
    "generation": 3,
    "creationTimestamp": "2020-01-01T00:00:00Z",
    "deletionTimestamp": "2020-01-01T00:00:00Z",
    "labels": {"a": "b"},
    "annotations": {"a": "b"},
    "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y", "controller": True}],
    "finalizers": ["a.b/c"],
    "managedFields": [{}],
}
OBJECTS: dict[str, dict[str, Any]] = {
    f"{NAMESPACED}/configmaps": {"data": {"a": "b"}, "binaryData": {"c": "YQ=="}, "immutable": False},
    f"{NAMESPACED}/secrets": {"data": {"a": "YQ=="}, "stringData": {"b": SENTINEL}, "type": "Opaque"},
    f"{NAMESPACED}/events": {"involvedObject": {"kind": "x"}, "source": {"component": "c"}, "count": 1},
    "/api/v1/namespaces": {"spec": {"finalizers": ["kubernetes"]}},
    "/api/v1/nodes": {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
    VOLUMES: {"spec": {"size": "1Gi", "node": "n1", "reclaimPolicy": "Retain"}},
    APPS: {
        "spec": {
            "image": "x",
            "nodeName": "n1",
            "command": ["a"],
            "env": [
                {"name": "A", "value": "x"},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            ],
            "ports": [{"port": 1}],
            "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": 1}},
            "securityContext": {"runAsUser": 1, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"path": "/a", "pv": "p1"}, {"path": "/b", "tmpfs": {"size": "1Mi"}}],
            "imagePullSecrets": [{"name": "s"}],
        },
        "status": {"phase": "Running"},
    },
}
VALUES: list[Any] = [None, True, -1, 1.5, 10**30, "", "x", [], {}, [None], ["x"], [{}], {"a": None}, {"a": "b"}, "\x00"]


def paths(value: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if above:
        yield above
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, part in parts:
        yield from paths(part, (*above, step))


def replaced(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    value = copy.deepcopy(value)
    at = value
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = new
    return value


def check(answer: Answer, what: object) -> None:
    assert answer.code < 500, (what, answer.body[:500])
    if answer.code >= 400:
        status = answer.json()
        assert (status["kind"], status["code"]) == ("Status", answer.code), what
        assert status["reason"], what
        assert status["message"], what
        assert len(answer.body) < LARGEST_ANSWER, what


@pytest.mark.parametrize("url", OBJECTS)
async def test_no_field_of_a_wrong_type_is_more_than_a_refusal(url: str, admin: Wire) -> None:
    obj = {"metadata": META, **OBJECTS[url]}
    for path in paths(obj):
        for value in VALUES:
            answer = await admin.ask("POST", f"{url}?dryRun=All", replaced(obj, path, value))
            check(answer, (path, value))
            if answer.code >= 400:
                assert SENTINEL not in answer.body.decode(), (path, value)


@pytest.mark.parametrize("url", OBJECTS)
async def test_no_patch_with_a_wrong_type_is_more_than_a_refusal(url: str, admin: Wire) -> None:
    obj = {"metadata": {"name": "w1"}, **OBJECTS[url]}
    assert (await admin.ask("POST", url, obj)).code == 201
    for path in paths(obj):
        for value in VALUES:
            patch = value
            for step in reversed(path):
                patch = {step: patch} if isinstance(step, str) else [patch]
            for kind in (MERGE, STRATEGIC):
                check(await admin.ask("PATCH", f"{url}/w1?dryRun=All", patch, kind), (kind, path, value))
            pointer = "".join(f"/{step}" for step in path)
            for operation in ("add", "replace", "test"):
                operations = [{"op": operation, "path": pointer, "value": value}]
                check(await admin.ask("PATCH", f"{url}/w1?dryRun=All", operations, JSON_PATCH), operations)


async def test_bodies_of_very_many_values_are_refused_at_once(admin: Wire) -> None:
    started = time.monotonic()
    body = b'{"metadata":{"name":"f","finalizers":[' + b",".join([b'""'] * 700_000) + b"]}}"
    answer = await admin.ask("POST", f"{NAMESPACED}/configmaps", body)
    check(answer, "finalizers")
    assert str(MAX_VALUES) in answer.json()["message"]
    assert time.monotonic() - started < 1


async def test_of_very_many_faults_the_first_hundred_are_told(admin: Wire) -> None:
    started = time.monotonic()
    for part in ({"data": {f"k{n}": 1 for n in range(50_000)}}, {"data": {"k": 1}, "immutable": ["x"] * 50_000}):
        check(await admin.ask("POST", f"{NAMESPACED}/configmaps", {"metadata": {"name": "f"}, **part}), "data")
    mounts = [{"path": "relative"}] * 30_000
    spec = {"image": "x", "volumeMounts": mounts}
    answer = await admin.ask("POST", APPS, {"metadata": {"name": "f"}, "spec": spec})
    check(answer, "mounts")
    status = answer.json()
    assert len(status["details"]["causes"]) == MAX_CAUSES
    assert "more" in status["message"]
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("part", ["name", "uid", "resourceVersion", "finalizers", "labels", "annotations"])
async def test_what_a_message_repeats_is_cut(part: str, admin: Wire) -> None:
    await admin.ask("POST", f"{NAMESPACED}/configmaps", {"metadata": {"name": "c"}})
    long = "!" * 1_000_000
    value: Any = [long] if part == "finalizers" else {long: "x"} if part in ("labels", "annotations") else long
    for method, url, kind in (("POST", "configmaps", "application/json"), ("PATCH", "configmaps/c", MERGE)):
        answer = await admin.ask(method, f"{NAMESPACED}/{url}", {"metadata": {"name": "c2", part: value}}, kind)
        check(answer, part)


async def test_an_object_does_not_grow_beyond_what_one_request_can_carry(admin: Wire, door: Door) -> None:
    await admin.ask("POST", APPS, {"metadata": {"name": "web"}, "spec": {"image": "x"}})
    codes = []
    for n in range(3):
        patch = {"spec": {"env": {f"K{n}": "x" * 1_400_000}}}
        codes.append((await admin.ask("PATCH", f"{APPS}/web", patch, MERGE)).code)
    assert codes == [200, 200, 413]
    status = await admin.ask("PATCH", f"{APPS}/web/status", {"status": {"message": "m" * 900_000}}, MERGE)
    assert status.code == 200
    assert (await admin.ask("PATCH", f"{APPS}/web", {"metadata": {"labels": {"a": "b"}}}, MERGE)).code == 200
    for message, code in (("m" * 1_100_000, 413), ("", 200)):
        answer = await admin.ask("PATCH", f"{APPS}/web/status", {"status": {"message": message}}, MERGE)
        assert answer.code == code, answer.body[:300]


@pytest.mark.parametrize(
    "status",
    [
        {"volumes": [{}]},
        {"volumes": [{"name": 1, "uid": []}]},
        {"volumes": ["x"]},
        {"capacity": {"ephemeral-storage": "garbage"}},
        {"capacity": {"ephemeral-storage": -1}},
        {"allocatable": {"cpu": "garbage", "memory": ""}},
    ],
)
async def test_what_a_node_says_of_itself_cannot_break_writes_to_it(status: dict[str, Any], door: Door) -> None:
    admin, node = await door.wire(), await door.wire("bad", ("system:nodes",))
    await admin.ask("POST", "/api/v1/nodes", {"metadata": {"name": "bad"}})
    answer = await node.ask("PATCH", "/api/v1/nodes/bad/status", {"status": status}, MERGE)
    assert (answer.code, answer.json()["reason"]) == (422, "Invalid")
    volume = {"metadata": {"name": "v"}, "spec": {"size": "1Gi", "node": "bad"}}
    assert (await admin.ask("POST", VOLUMES, volume)).code == 201
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}}
    spec = {"image": "x", "nodeName": "bad", "resources": resources}
    assert (await admin.ask("POST", APPS, {"metadata": {"name": "a"}, "spec": spec})).code == 201


async def test_a_wrong_dry_run_is_named(admin: Wire) -> None:
    answer = await admin.ask("POST", f"{NAMESPACED}/configmaps?dryRun=All&dryRun=Some", {"metadata": {"name": "c"}})
    assert '"Some"' in answer.json()["details"]["causes"][0]["message"]


async def test_a_long_warning_stays_one_quoted_text(admin: Wire) -> None:
    body = json.dumps({"metadata": {"name": "c"}, '"\\' * 1000: 1}).encode()
    answer = await admin.ask("POST", f"{NAMESPACED}/configmaps", body)
    (warning,) = answer.headers["warning"]
    text = warning.removeprefix('299 - "')
    assert text.endswith('"')
    assert not text[:-1].replace("\\\\", "").replace('\\"', "").count('"')
    assert not text[:-1].replace("\\\\", "").endswith("\\")
