"""What the server says it serves."""

from __future__ import annotations

from .door import Door
from .test_verbs import APPS, application
from .wire import Wire

V2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


async def test_aggregated_discovery_names_its_type(admin: Wire) -> None:
    for version in ("v2", "v2beta1"):
        accept = V2.replace("v=v2", f"v={version}")
        answer = await admin.ask("GET", "/apis?timeout=32s", Accept=f"{accept},application/json")
        assert answer.header("content-type") == accept
        document = answer.json()
        assert document["apiVersion"] == f"apidiscovery.k8s.io/{version}"
        groups = {item["metadata"]["name"]: item["versions"] for item in document["items"]}
        resources = {r["resource"]: r for r in groups["orch.ks-tool.dev"][0]["resources"]}
        assert resources["applications"]["shortNames"] == ["app", "apps"]
        assert resources["applications"]["categories"] == ["all"]
        assert [s["subresource"] for s in resources["applications"]["subresources"]] == ["status"]
    core = (await admin.ask("GET", "/api", Accept=V2)).json()
    assert "name" not in core["items"][0]["metadata"]
    pods = next(r for r in core["items"][0]["versions"][0]["resources"] if r["resource"] == "pods")
    assert (pods["verbs"], "categories" in pods) == (["get", "list", "watch"], False)


async def test_an_unchanged_document_is_not_sent_again(admin: Wire) -> None:
    for path in ("/api", "/apis", "/api/v1", "/openapi/v3"):
        first = await admin.ask("GET", path)
        second = await admin.ask("GET", path, If_None_Match=first.header("etag"))
        assert (second.code, second.body) == (304, b"")
        assert (await admin.ask("GET", path, If_None_Match='"other"')).code == 200


async def test_older_discovery_lists(admin: Wire) -> None:
    assert (await admin.ask("GET", "/api/")).json()["versions"] == ["v1"]
    groups = (await admin.ask("GET", "/apis")).json()
    assert groups["kind"] == "APIGroupList"
    assert (await admin.ask("GET", "/apis/orch.ks-tool.dev")).json()["preferredVersion"]["version"] == "v1"
    core = (await admin.ask("GET", "/api/v1")).json()
    names = {r["name"] for r in core["resources"]}
    assert {"namespaces", "namespaces/status", "nodes", "pods", "pods/log", "secrets", "services"} <= names
    assert (await admin.ask("GET", "/apis/no.such/v1")).code == 404
    assert (await admin.ask("GET", "/api/v1/namespaces/default/services")).json()["items"] == []


async def test_openapi_documents_have_urls_that_never_change(admin: Wire) -> None:
    index = (await admin.ask("GET", "/openapi/v3")).json()["paths"]
    assert {"api/v1", "apis/orch.ks-tool.dev/v1"} <= set(index)
    url = index["apis/orch.ks-tool.dev/v1"]["serverRelativeURL"]
    answer = await admin.ask("GET", f"{url}&timeout=32s")
    assert "immutable" in answer.header("cache-control")
    assert "private" not in answer.header("cache-control")
    path = "/apis/orch.ks-tool.dev/v1/namespaces/{namespace}/applications/{name}"
    assert any(p["name"] == "fieldValidation" for p in answer.json()["paths"][path]["patch"]["parameters"])
    assert (await admin.ask("GET", "/openapi/v2")).code == 404


async def test_a_kind_that_leaves_the_registry_is_no_longer_served(admin: Wire, door: Door) -> None:
    from horchestra.kinds.application import Application

    await admin.ask("POST", APPS, application())
    door.store.registry.remove(Application)
    assert (await admin.ask("GET", APPS)).code == 404
    assert "pods" not in {r["name"] for r in (await admin.ask("GET", "/api/v1")).json()["resources"]}
    assert "Application" not in (await admin.ask("GET", "/apis/orch.ks-tool.dev/v1")).body.decode()


async def test_the_version_is_one_that_kubectl_has_nothing_to_say_about(admin: Wire) -> None:
    for path in ("/version", "/version/", "/version?timeout=32s"):
        found = (await admin.ask("GET", path)).json()
        assert (found["major"], found["minor"], found["gitVersion"]) == ("1", "33", "v1.33.0+horchestra")
        assert all(isinstance(value, str) for value in found.values())


async def test_metrics_count_requests_and_watches(admin: Wire, door: Door) -> None:
    await admin.ask("POST", APPS, application())
    watcher = await door.wire()
    watcher.request("GET", f"{APPS}?watch=1")
    await watcher.head()
    text = (await admin.ask("GET", "/metrics")).body.decode()
    labels = 'code="201",group="orch.ks-tool.dev",resource="applications",verb="create"'
    assert f"apiserver_request_total{{{labels}}}" in text
    assert 'apiserver_longrunning_requests{group="orch.ks-tool.dev",resource="applications",verb="watch"}' in text
    assert "horchestra_store_seconds_count" in text


async def test_paths_that_are_nowhere_are_not_found(admin: Wire) -> None:
    for path in ("/", "/nowhere", "/api/v1/nowhere", "/apis/orch.ks-tool.dev/v9/applications", "/api/v1//pods"):
        assert (await admin.ask("GET", path)).json()["code"] == 404
