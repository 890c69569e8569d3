"""Who may knock, what they are told, and what is written down about it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from .door import Door
from .test_verbs import APPS, MERGE, application, reason, secret
from .wire import Wire

NODE = ("system:nodes",)


async def test_nobody_gets_401_everywhere_but_at_the_public_paths(door: Door) -> None:
    wire = await door.connect(None)
    for path in ("/livez", "/readyz", "/healthz", "/version", "/version/"):
        assert (await wire.ask("GET", path)).code == 200
    for path in (
        "/",
        "/api",
        "/apis",
        "/openapi/v3",
        "/metrics",
        "/made/up",
        APPS,
        "/apis/no.such/v1/things",
        "/api/v1/pods/a%2Fb",
        "/api/v1/services",
    ):
        assert reason(await wire.ask("GET", path)) == (401, "Unauthorized"), path
    assert reason(await wire.ask("POST", APPS, application())) == (401, "Unauthorized")
    assert {r.code for r in door.audit} == {401}
    assert {r.user for r in door.audit} == {"system:anonymous"}


async def test_an_expired_certificate_is_nobody_to_a_connection_that_is_still_open(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = await door.wire()
    assert (await wire.ask("GET", APPS)).code == 200
    later = (datetime.now(UTC) + timedelta(days=2)).timestamp()
    monkeypatch.setattr("horchestra.apiserver.app.time.time", lambda: later)
    assert reason(await wire.ask("GET", APPS)) == (401, "Unauthorized")


async def test_a_node_reports_its_own_status_and_nothing_else(admin: Wire, door: Door) -> None:
    for name in ("n1", "n2"):
        await admin.ask("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    node = await door.wire("n1", NODE)
    status = {"status": {"capacity": {"cpu": "2"}}}
    assert (await node.ask("PATCH", "/api/v1/nodes/n1/status", status, MERGE)).code == 200
    assert (await node.ask("GET", "/api/v1/nodes/n1")).code == 200
    assert (await node.ask("GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dn1")).code == 200
    for method, path, body in (
        ("PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {"a": "b"}}}),
        ("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": True}}),
        ("PATCH", "/api/v1/nodes/n2/status", status),
        ("PATCH", "/api/v1/nodes/n2", status),
        ("POST", APPS, application()),
        ("GET", APPS, None),
        ("GET", "/api/v1/nodes", None),
        ("GET", "/api/v1/namespaces/default/secrets", None),
        ("GET", "/api/v1/namespaces/default/pods/web/log", None),
    ):
        assert reason(await node.ask(method, path, body, MERGE)) == (403, "Forbidden"), (method, path)


async def test_others_may_look_around_but_touch_nothing(door: Door) -> None:
    alice = await door.wire("alice", ("team",))
    for path in ("/api", "/apis", "/apis/orch.ks-tool.dev/v1", "/openapi/v3", "/version"):
        assert (await alice.ask("GET", path)).code == 200
    answer = await alice.ask("GET", APPS)
    assert reason(answer) == (403, "Forbidden")
    assert answer.json()["message"] == (
        'applications.orch.ks-tool.dev is forbidden: User "alice" cannot list resource "applications" in API group '
        '"orch.ks-tool.dev" in the namespace "default"'
    )
    named = (await alice.ask("DELETE", "/api/v1/namespaces/default/secrets/db")).json()
    assert named["message"].startswith('secrets "db" is forbidden: User "alice" cannot delete resource "secrets"')
    assert named["details"] == {"name": "db", "kind": "secrets"}


async def test_a_secret_under_another_group_is_not_found(admin: Wire) -> None:
    await admin.ask("POST", "/api/v1/namespaces/default/secrets", secret("s", a="b"))
    for path in (
        "/apis/orch.ks-tool.dev/v1/namespaces/default/secrets/s",
        "/api/v2/namespaces/default/secrets/s",
        "/api/v1/secrets/s",
        "/api/v1/namespaces/default/nodes/n1",
    ):
        assert reason(await admin.ask("GET", path)) == (404, "NotFound")


async def test_an_encoded_slash_is_a_bad_request(admin: Wire) -> None:
    assert reason(await admin.ask("GET", "/api/v1/namespaces/default%2Fsecrets/x")) == (400, "BadRequest")


async def test_methods_that_a_resource_does_not_have(admin: Wire) -> None:
    assert reason(await admin.ask("POST", f"{APPS}/web", application())) == (405, "MethodNotAllowed")
    assert reason(await admin.ask("POST", "/apis/orch.ks-tool.dev/v1/noderemovals", {})) == (405, "MethodNotAllowed")
    assert reason(await admin.ask("PUT", "/version", {})) == (405, "MethodNotAllowed")


async def test_mutations_and_denials_are_written_down_and_reads_are_not(admin: Wire, door: Door) -> None:
    await admin.ask("POST", "/api/v1/namespaces/default/secrets?dryRun=All", secret("db", key="hunter2"))
    answer = await admin.ask("POST", "/api/v1/namespaces/default/secrets", secret("db", key="hunter2"))
    await admin.ask("GET", "/api/v1/namespaces/default/secrets/db")
    await (await door.wire("alice", ())).ask("GET", "/api/v1/namespaces/default/secrets/db")
    first, second, third = door.audit
    assert (first.dry_run, second.dry_run) == (True, False)
    assert second.name == "db"
    assert (second.user, second.verb, second.resource, second.namespace, second.code) == (
        "admin",
        "create",
        "secrets",
        "default",
        201,
    )
    assert second.request_id == answer.header("audit-id")
    assert second.source == "127.0.0.1"
    assert second.credential.startswith("certificate:")
    assert (third.user, third.verb, third.name, third.code, third.reason) == ("alice", "get", "db", 403, "Forbidden")
    assert "aHVudGVyMg==" not in repr(door.audit)
    assert "hunter2" not in repr(door.audit)


async def test_whoami_and_can_i(door: Door) -> None:
    alice = await door.wire("alice", ("team",))
    review = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
    found = await alice.ask("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    assert found.code == 201
    info = found.json()["status"]["userInfo"]
    assert (info["username"], set(info["groups"])) == ("alice", {"team", "system:authenticated"})
    url = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    ask = {"spec": {"resourceAttributes": {"verb": "list", "resource": "secrets", "namespace": "default"}}}
    assert (await alice.ask("POST", url, ask)).json()["status"] == {"allowed": False}
    assert (await (await door.wire()).ask("POST", url, ask)).json()["status"]["allowed"] is True
    path = {"spec": {"nonResourceAttributes": {"verb": "get", "path": "/version"}}}
    assert (await alice.ask("POST", url, path)).json()["status"]["allowed"] is True
    assert reason(await alice.ask("POST", url, {"spec": {}})) == (400, "BadRequest")


async def test_a_generated_name_is_written_down(admin: Wire, door: Door) -> None:
    obj = {"metadata": {"generateName": "job-"}, "data": {}}
    created = (await admin.ask("POST", "/api/v1/namespaces/default/configmaps", obj)).json()
    assert door.audit[-1].name == created["metadata"]["name"]
    assert created["metadata"]["name"].startswith("job-")


async def test_acting_as_another_user_is_refused_and_not_done_as_oneself(admin: Wire, door: Door) -> None:
    answer = await admin.ask("POST", APPS, application(), Impersonate_User="alice")
    assert reason(answer) == (403, "Forbidden")
    assert "impersonation" in answer.json()["message"]
    assert (await admin.ask("GET", f"{APPS}/web")).code == 404
    assert (door.audit[0].code, door.audit[0].user) == (403, "admin")


async def test_a_page_of_another_origin_cannot_write_with_a_browsers_certificate(admin: Wire) -> None:
    answer = await admin.ask("POST", APPS, application(), Origin="https://evil.example")
    assert reason(answer) == (403, "Forbidden")
    assert (await admin.ask("POST", APPS, application(), Origin="https://localhost")).code == 201
    form = await admin.ask("POST", APPS, b"a=b", "application/x-www-form-urlencoded")
    assert reason(form) == (415, "UnsupportedMediaType")
