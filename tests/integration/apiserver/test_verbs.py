"""What clients may ask of objects, and what they are told."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
import yaml

from .door import Door
from .wire import Answer, Wire

APPS = "/apis/orch.ks-tool.dev/v1/namespaces/default/applications"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


def application(name: str = "web", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "orch.ks-tool.dev/v1",
        "kind": "Application",
        "metadata": {"name": name},
        "spec": {"image": "img:1", **spec},
    }


def secret(name: str, **data: str) -> dict[str, Any]:
    encoded = {k: base64.b64encode(v.encode()).decode() for k, v in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}


def reason(answer: Answer) -> tuple[int, str]:
    status = answer.json()
    assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Failure")
    assert status["code"] == answer.code
    return answer.code, status["reason"]


async def test_an_object_lives_from_post_to_delete(admin: Wire) -> None:
    created = await admin.ask("POST", APPS, application())
    assert created.code == 201
    obj = created.json()
    meta = obj["metadata"]
    assert meta["uid"]
    assert meta["creationTimestamp"]
    assert int(meta["resourceVersion"]) > 0
    assert meta["generation"] == 1
    assert obj["spec"]["restartPolicy"] == "Always"
    got = await admin.ask("GET", f"{APPS}/web")
    assert (got.code, got.json()) == (200, obj)
    assert reason(await admin.ask("POST", APPS, application())) == (409, "AlreadyExists")
    deleted = await admin.ask("DELETE", f"{APPS}/web", {"propagationPolicy": "Background", "gracePeriodSeconds": 0})
    assert deleted.code == 200
    assert deleted.json()["kind"] in ("Status", "Application")


async def test_what_has_no_finalizer_is_deleted_with_a_status_of_success(admin: Wire) -> None:
    path = "/api/v1/namespaces/default/secrets"
    uid = (await admin.ask("POST", path, secret("s", a="b"))).json()["metadata"]["uid"]
    status = (await admin.ask("DELETE", f"{path}/s")).json()
    assert (status["kind"], status["status"]) == ("Status", "Success")
    assert status["details"] == {"name": "s", "kind": "secrets", "uid": uid}
    assert reason(await admin.ask("GET", f"{path}/s")) == (404, "NotFound")


async def test_yaml_and_a_body_without_a_content_type_are_read(admin: Wire) -> None:
    body = yaml.safe_dump(application("one")).encode()
    assert (await admin.ask("POST", APPS, body, "application/yaml")).code == 201
    admin.request(
        "POST",
        APPS,
        b'{"apiVersion":"orch.ks-tool.dev/v1","kind":"Application","metadata":{"name":"two"},"spec":{"image":"i"}}',
    )
    assert (await admin.answer()).code == 201


async def test_patches_of_every_kind(admin: Wire) -> None:
    await admin.ask("POST", APPS, application(workingDir="/srv"))
    url = f"{APPS}/web"
    merged = await admin.ask("PATCH", url, {"spec": {"workingDir": None, "image": "img:2"}}, MERGE)
    assert (merged.code, merged.json()["spec"]["image"]) == (200, "img:2")
    assert "workingDir" not in merged.json()["spec"]
    operations = [
        {"op": "test", "path": "/spec/image", "value": "img:2"},
        {"op": "replace", "path": "/spec/image", "value": "img:3"},
    ]
    assert (await admin.ask("PATCH", url, operations, JSON_PATCH)).json()["spec"]["image"] == "img:3"
    assert (await admin.ask("PATCH", url, {"spec": {"image": "img:4"}}, STRATEGIC)).json()["spec"]["image"] == "img:4"
    assert reason(await admin.ask("PATCH", url, {"op": "add"}, JSON_PATCH)) == (400, "BadRequest")
    assert reason(await admin.ask("PATCH", url, [{"op": "nonsense"}], JSON_PATCH)) == (400, "BadRequest")
    assert reason(await admin.ask("PATCH", url, operations, JSON_PATCH)) == (422, "Invalid")
    assert reason(await admin.ask("PATCH", url, [], MERGE)) == (400, "BadRequest")
    assert reason(await admin.ask("PATCH", url, {}, "text/plain")) == (415, "UnsupportedMediaType")
    applied = await admin.ask("PATCH", url, application(), "application/apply-patch+yaml")
    assert reason(applied) == (415, "UnsupportedMediaType")
    assert "--server-side" in applied.json()["message"]
    assert reason(await admin.ask("PATCH", url, {"kind": "Other"}, MERGE)) == (400, "BadRequest")
    assert reason(await admin.ask("PATCH", f"{APPS}/none", {}, MERGE)) == (404, "NotFound")


async def test_strategic_patches_of_core_kinds_follow_their_merge_keys(admin: Wire) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    await admin.ask("POST", "/api/v1/nodes", node)
    conditions = [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "True"}]
    await admin.ask("PATCH", "/api/v1/nodes/n1/status", {"status": {"conditions": conditions}}, STRATEGIC)
    change = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    found = (await admin.ask("PATCH", "/api/v1/nodes/n1/status", change, STRATEGIC)).json()
    assert {c["type"]: c["status"] for c in found["status"]["conditions"]} == {"Ready": "False", "Other": "True"}


async def test_a_write_with_an_old_resource_version_conflicts(admin: Wire) -> None:
    obj = (await admin.ask("POST", APPS, application())).json()
    await admin.ask("PATCH", f"{APPS}/web", {"metadata": {"labels": {"a": "b"}}}, MERGE)
    obj["spec"]["image"] = "img:2"
    assert reason(await admin.ask("PUT", f"{APPS}/web", obj)) == (409, "Conflict")
    patch = {"metadata": {"resourceVersion": obj["metadata"]["resourceVersion"]}, "spec": {"image": "x"}}
    assert reason(await admin.ask("PATCH", f"{APPS}/web", patch, MERGE)) == (409, "Conflict")
    del obj["metadata"]["resourceVersion"]
    assert (await admin.ask("PUT", f"{APPS}/web", obj)).code == 200
    options = {"preconditions": {"uid": "another"}}
    assert reason(await admin.ask("DELETE", f"{APPS}/web", options)) == (409, "Conflict")


async def test_status_belongs_to_the_status_subresource(admin: Wire) -> None:
    created = (await admin.ask("POST", APPS, {**application(), "status": {"phase": "Running"}})).json()
    assert created["status"]["phase"] == "Pending"
    reported = await admin.ask(
        "PATCH", f"{APPS}/web/status", {"status": {"phase": "Running"}, "spec": {"image": "no"}}, MERGE
    )
    assert (reported.json()["status"]["phase"], reported.json()["spec"]["image"]) == ("Running", "img:1")
    assert reported.json()["metadata"]["generation"] == 1
    changed = (
        await admin.ask("PUT", f"{APPS}/web", {**application(image="img:2"), "status": {"phase": "Failed"}})
    ).json()
    assert (changed["status"]["phase"], changed["metadata"]["generation"]) == ("Running", 2)
    assert (await admin.ask("GET", f"{APPS}/web/status")).json() == changed
    assert reason(await admin.ask("DELETE", f"{APPS}/web/status")) == (405, "MethodNotAllowed")
    assert reason(await admin.ask("GET", f"{APPS}/web/scale")) == (404, "NotFound")


async def test_field_validation_refuses_warns_or_is_silent(admin: Wire) -> None:
    obj = application(bogus=1)
    strict = await admin.ask("POST", f"{APPS}?fieldValidation=Strict", obj)
    assert reason(strict) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.bogus"' in strict.json()["message"]
    warned = await admin.ask("POST", f"{APPS}?fieldValidation=Warn&dryRun=All", obj)
    assert (warned.code, warned.headers["warning"]) == (201, ['299 - "unknown field \\"spec.bogus\\""'])
    silent = await admin.ask("POST", f"{APPS}?fieldValidation=Ignore&dryRun=All", obj)
    assert (silent.code, "warning" in silent.headers) == (201, False)
    assert reason(await admin.ask("POST", f"{APPS}?fieldValidation=Maybe", obj)) == (422, "Invalid")
    twice = b'{"metadata":{"name":"web","name":"web"},"spec":{"image":"i"}}'
    assert reason(await admin.ask("POST", f"{APPS}?fieldValidation=Strict", twice)) == (400, "BadRequest")


async def test_a_dry_run_stores_nothing(admin: Wire, door: Door) -> None:
    revision = door.store.watch.revision
    assert (await admin.ask("POST", f"{APPS}?dryRun=All", application())).code == 201
    assert reason(await admin.ask("GET", f"{APPS}/web")) == (404, "NotFound")
    await admin.ask("POST", APPS, application())
    assert (await admin.ask("PUT", f"{APPS}/web?dryRun=All", application(image="x"))).json()["spec"]["image"] == "x"
    assert (await admin.ask("PATCH", f"{APPS}/web?dryRun=All", {"spec": {"image": "x"}}, MERGE)).code == 200
    assert (await admin.ask("DELETE", f"{APPS}/web", {"dryRun": ["All"]})).code == 200
    assert (await admin.ask("DELETE", f"{APPS}/web?dryRun=All")).code == 200
    assert (await admin.ask("DELETE", f"{APPS}?dryRun=All")).code == 200
    assert (await admin.ask("GET", f"{APPS}/web")).json()["spec"]["image"] == "img:1"
    assert door.store.watch.revision == revision + 1
    assert reason(await admin.ask("POST", f"{APPS}?dryRun=Some", application("b"))) == (422, "Invalid")
    assert [r.dry_run for r in door.audit if r.verb == "delete"] == [True, True]


async def test_an_object_that_does_not_belong_to_the_url_is_refused(admin: Wire) -> None:
    await admin.ask("POST", APPS, application())
    other = application()
    other["metadata"]["namespace"] = "other"
    assert reason(await admin.ask("POST", APPS, other)) == (400, "BadRequest")
    assert reason(await admin.ask("PUT", f"{APPS}/web", application("api"))) == (400, "BadRequest")
    assert reason(await admin.ask("POST", APPS, secret("s"))) == (400, "BadRequest")
    assert reason(await admin.ask("POST", APPS, [])) == (400, "BadRequest")
    assert reason(await admin.ask("POST", APPS, b"{")) == (400, "BadRequest")
    nowhere = APPS.replace("/default/", "/nowhere/")
    assert reason(await admin.ask("POST", nowhere, application())) == (404, "NotFound")


async def test_all_bad_fields_are_named_at_once(admin: Wire) -> None:
    obj = application(ports=[{"port": 1}, {"port": 1}], workingDir="srv")
    answer = await admin.ask("POST", APPS, obj)
    assert reason(answer) == (422, "Invalid")
    details = answer.json()["details"]
    assert (details["kind"], details["name"]) == ("Application", "web")
    assert {c["field"] for c in details["causes"]} == {"spec.ports[1]", "spec.workingDir"}


async def test_a_body_over_3_mib_is_refused(door: Door) -> None:
    body = b'{"metadata":{"name":"x"},"pad":"' + b"a" * 3 * 1024 * 1024 + b'"}'
    wire = await door.wire()
    assert reason(await wire.ask("POST", APPS, body)) == (413, "RequestEntityTooLarge")
    wire = await door.wire()
    wire.send(b"POST " + APPS.encode() + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(60):
        wire.send(b"10000\r\n" + b"a" * 65536 + b"\r\n")
    assert reason(await wire.answer()) == (413, "RequestEntityTooLarge")


async def test_missing_references_warn(admin: Wire) -> None:
    answer = await admin.ask("POST", APPS, application(nodeName="n9"))
    assert answer.code == 201
    assert answer.headers["warning"] == ['299 - "spec.nodeName: node \\"n9\\" not found"']


async def test_a_collection_is_deleted_by_selector(admin: Wire) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    for name, team in (("a", "x"), ("b", "x"), ("c", "y")):
        await admin.ask("POST", path, {"metadata": {"name": name, "labels": {"team": team}}})
    assert (await admin.ask("DELETE", f"{path}?labelSelector=team%3Dx")).json()["status"] == "Success"
    assert [o["metadata"]["name"] for o in (await admin.ask("GET", path)).json()["items"]] == ["c"]


async def test_lists_are_selected_by_labels_and_fields(admin: Wire) -> None:
    for name in ("a", "b", "c"):
        obj = application(name, nodeName="n1" if name == "a" else "n2")
        obj["metadata"]["labels"] = {"name": name}
        await admin.ask("POST", APPS, obj)

    async def names(query: str, path: str = APPS) -> list[str]:
        answer = await admin.ask("GET", f"{path}?{query}")
        assert answer.code == 200, answer.body
        return [o["metadata"]["name"] for o in answer.json()["items"]]

    assert await names("labelSelector=name+in+(a,b)") == ["a", "b"]
    assert await names("fieldSelector=spec.nodeName=n2") == ["b", "c"]
    assert await names("fieldSelector=metadata.name=b") == ["b"]
    assert await names("fieldSelector=metadata.name=b", "/apis/orch.ks-tool.dev/v1/applications") == ["b"]
    assert await names("fieldSelector=metadata.name=b,spec.nodeName=n1") == []
    assert await names("fieldSelector=spec.nodeName=n1", "/api/v1/pods") == ["a"]
    assert await names("fieldSelector=spec.nodeName=n1,status.phase!=Succeeded", "/api/v1/pods") == ["a"]
    assert reason(await admin.ask("GET", f"{APPS}?fieldSelector=spec.image=x")) == (400, "BadRequest")
    assert reason(await admin.ask("GET", f"{APPS}?labelSelector=a(")) == (400, "BadRequest")


async def test_pages_come_from_the_first_pages_snapshot(admin: Wire) -> None:
    for name in "abcde":
        await admin.ask("POST", APPS, application(name))
    first = (await admin.ask("GET", f"{APPS}?limit=2")).json()
    assert [o["metadata"]["name"] for o in first["items"]] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 3
    await admin.ask("POST", APPS, application("cc"))
    await admin.ask("PATCH", f"{APPS}/d", {"spec": {"image": "new"}}, MERGE)
    token = first["metadata"]["continue"]
    second = (await admin.ask("GET", f"{APPS}?limit=2&continue={token}")).json()
    assert [(o["metadata"]["name"], o["spec"]["image"]) for o in second["items"]] == [("c", "img:1"), ("d", "img:1")]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    last = (await admin.ask("GET", f"{APPS}?limit=2&continue={second['metadata']['continue']}")).json()
    assert [o["metadata"]["name"] for o in last["items"]] == ["e"]
    assert "continue" not in last["metadata"]


async def test_a_lost_snapshot_is_expired_with_a_token_to_go_on(admin: Wire, door: Door) -> None:
    for name in "abc":
        await admin.ask("POST", APPS, application(name))
    token = (await admin.ask("GET", f"{APPS}?limit=1")).json()["metadata"]["continue"]
    door.app._reader._pages._snapshots.clear()
    answer = await admin.ask("GET", f"{APPS}?limit=1&continue={token}")
    assert reason(answer) == (410, "Expired")
    fresh = answer.json()["metadata"]["continue"]
    rest = (await admin.ask("GET", f"{APPS}?limit=5&continue={fresh}")).json()
    assert [o["metadata"]["name"] for o in rest["items"]] == ["b", "c"]


async def test_a_token_of_another_list_is_refused(admin: Wire) -> None:
    for name in "abc":
        await admin.ask("POST", APPS, application(name))
    token = (await admin.ask("GET", f"{APPS}?limit=1")).json()["metadata"]["continue"]
    other = "/apis/orch.ks-tool.dev/v1/applications"
    assert reason(await admin.ask("GET", f"{other}?continue={token}")) == (400, "BadRequest")
    assert reason(await admin.ask("GET", f"{APPS}?continue=AAAA")) == (400, "BadRequest")
    assert reason(await admin.ask("GET", f"{APPS}?limit=-1")) == (400, "BadRequest")


async def test_resource_versions_of_lists(admin: Wire, door: Door) -> None:
    await admin.ask("POST", APPS, application())
    now = door.store.watch.revision
    for query in ("resourceVersion=0", f"resourceVersion={now}", f"resourceVersion={now}&resourceVersionMatch=Exact"):
        assert (await admin.ask("GET", f"{APPS}?{query}")).json()["metadata"]["resourceVersion"] == str(now)
    assert reason(await admin.ask("GET", f"{APPS}?resourceVersion=abc")) == (400, "BadRequest")
    assert reason(await admin.ask("GET", f"{APPS}?resourceVersionMatch=Exact")) == (422, "Invalid")
    early = await admin.ask("GET", f"{APPS}?resourceVersion=1&resourceVersionMatch=Exact")
    assert reason(early) == (410, "Expired")


async def test_a_list_waits_for_a_revision_that_is_about_to_come(door: Door) -> None:
    wire, other = await door.wire(), await door.wire()
    wire.request("GET", f"{APPS}?resourceVersion={door.store.watch.revision + 1}")
    answer = asyncio.create_task(wire.answer())
    await asyncio.sleep(0.1)
    assert not answer.done()
    await other.ask("POST", APPS, application())
    assert len((await answer).json()["items"]) == 1


async def test_tables_have_the_columns_of_the_kind(admin: Wire) -> None:
    await admin.ask("POST", APPS, application(nodeName="n1"))
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    answer = await admin.ask("GET", APPS, Accept=accept)
    table = answer.json()
    assert "Accept" in answer.header("vary")
    columns = [(c["name"], c["priority"]) for c in table["columnDefinitions"]]
    narrow = [name for name, priority in columns if not priority]
    assert narrow == ["Name", "Image", "Status", "Restarts", "Age"]
    assert [name for name, priority in columns if priority] == ["Node", "IP", "Ports", "Message"]
    (row,) = table["rows"]
    assert row["cells"][:4] == ["web", "img:1", "Pending", 0]
    assert row["cells"][5] == "n1"
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["name"] == "web"
    whole = (await admin.ask("GET", f"{APPS}?includeObject=Object", Accept=accept)).json()
    assert whole["rows"][0]["object"]["spec"]["image"] == "img:1"
    none = (await admin.ask("GET", f"{APPS}/web?includeObject=None", Accept=accept)).json()
    assert none["rows"][0]["object"] is None
    assert reason(await admin.ask("GET", f"{APPS}?includeObject=x", Accept=accept)) == (400, "BadRequest")


async def test_metadata_alone_is_given_to_who_asks_for_it(admin: Wire) -> None:
    await admin.ask("POST", APPS, application())
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    found = (await admin.ask("GET", APPS, Accept=accept)).json()
    assert (found["kind"], found["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert set(found["items"][0]) == {"kind", "apiVersion", "metadata"}
    one = await admin.ask("GET", f"{APPS}/web", Accept="application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
    assert one.json()["kind"] == "PartialObjectMetadata"


async def test_large_answers_are_compressed_for_who_takes_it(admin: Wire) -> None:
    import gzip
    import json

    for number in range(3):
        obj = {"metadata": {"name": f"big{number}"}, "data": {"x": "a" * 100_000}}
        await admin.ask("POST", "/api/v1/namespaces/default/configmaps", obj)
    answer = await admin.ask("GET", "/api/v1/namespaces/default/configmaps", Accept_Encoding="gzip")
    assert answer.header("content-encoding") == "gzip"
    assert len(json.loads(gzip.decompress(answer.body))["items"]) == 3


async def test_pods_can_be_read_but_not_written(admin: Wire) -> None:
    await admin.ask("POST", APPS, application())
    pods = "/api/v1/namespaces/default/pods"
    pod = (await admin.ask("GET", f"{pods}/web")).json()
    assert (pod["kind"], pod["apiVersion"], pod["status"]["phase"]) == ("Pod", "v1", "Pending")
    assert (await admin.ask("GET", pods)).json()["kind"] == "PodList"
    answer = await admin.ask("DELETE", f"{pods}/web")
    assert reason(answer) == (405, "MethodNotAllowed")
    assert "Application" in answer.json()["message"]
    assert reason(await admin.ask("POST", pods, {})) == (405, "MethodNotAllowed")
    for subresource in ("exec", "attach", "portforward"):
        for method in ("GET", "POST"):
            assert (await admin.ask(method, f"{pods}/web/{subresource}")).code == 501


async def test_kubectl_logs_of_an_application_is_given_its_pod(admin: Wire) -> None:
    await admin.ask("POST", APPS, application())
    found = await admin.ask("GET", f"{APPS}/web", Kubectl_Command="kubectl logs", Accept="application/json, */*")
    assert found.json()["kind"] == "Pod"
    assert "Kubectl-Command" in found.header("vary")
    assert (await admin.ask("GET", f"{APPS}/web", Kubectl_Command="kubectl get")).json()["kind"] == "Application"


async def test_an_error_inside_says_nothing_of_the_inside(
    admin: Wire, door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*args: object) -> None:
        raise RuntimeError("the password is hunter2")

    door.app._reader.get = broken  # type: ignore[method-assign,assignment]
    answer = await admin.ask("GET", f"{APPS}/web")
    assert reason(answer) == (500, "InternalError")
    assert "hunter2" not in answer.body.decode()
    assert answer.header("audit-id") in answer.json()["message"]
    assert answer.header("audit-id") in caplog.text
