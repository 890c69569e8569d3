"""What holds for every kind that is registered, without a test written for it: it needs `examples/<kind>.yaml`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from horchestra import kinds
from horchestra.apimachinery.meta import APIObject
from horchestra.apimachinery.registry import ALL_VERBS, Resource
from tests.e2e import kubectl
from tests.integration.apiserver.door import Door, opened
from tests.integration.apiserver.wire import Certificates, Wire
from tests.lab.command import run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KINDS = list(kinds.builtin())
MADE_BY_THE_SERVER = {
    "NodeRemoval": {
        "apiVersion": "orch.ks-tool.dev/v1",
        "kind": "NodeRemoval",
        "metadata": {"name": "an-example"},
        "spec": {"node": "sav-01", "kind": "Application", "namespace": "default", "name": "web", "uid": "1"},
    }
}
"""Kinds that nobody applies."""
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
MERGE = "application/merge-patch+json"

every_kind = pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.resource.kind)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(Path(tmp_path_factory.mktemp("conformance")))


@pytest.fixture
async def door(tmp_path: Path, certificates: Certificates) -> AsyncIterator[Door]:
    async with opened(tmp_path, certificates) as made:
        yield made


@pytest.fixture
async def admin(door: Door) -> Wire:
    return await door.wire()


def example(resource: Resource) -> dict[str, Any]:
    """The kind's example, without what has to exist before it."""
    if resource.kind in MADE_BY_THE_SERVER:
        return json.loads(json.dumps(MADE_BY_THE_SERVER[resource.kind]))
    documents = yaml.safe_load_all((EXAMPLES / f"{resource.kind.lower()}.yaml").read_text())
    return next(d for d in documents if d and d["kind"] == resource.kind)


def collection(resource: Resource) -> str:
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    return f"{root}/namespaces/default/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"


async def put(door: Door, admin: Wire, resource: Resource) -> dict[str, Any]:
    """Creates the example, through the API where it may be."""
    obj = example(resource)
    if "create" not in resource.verbs:
        return await door.put(obj)
    created = await admin.ask("POST", collection(resource), obj)
    assert created.code == 201, created.body
    return created.json()


@every_kind
async def test_its_example_is_created_and_read_back_the_same(cls: type[APIObject], door: Door, admin: Wire) -> None:
    resource = cls.resource
    obj = await put(door, admin, resource)
    meta = obj["metadata"]
    assert (obj["apiVersion"], obj["kind"]) == (resource.api_version, resource.kind)
    assert all(meta[field] for field in ("uid", "resourceVersion", "creationTimestamp", "generation"))
    assert ("namespace" in meta) == resource.namespaced
    url = f"{collection(resource)}/{meta['name']}"
    assert (await admin.ask("GET", url)).json() == obj
    if "create" in resource.verbs:
        again = await admin.ask("POST", collection(resource), example(resource))
        assert (again.code, again.json()["reason"]) == (409, "AlreadyExists")
    assert (await admin.ask("GET", f"{collection(resource)}/no-such-thing")).code == 404


@every_kind
async def test_it_is_listed_with_a_version_to_watch_from(cls: type[APIObject], door: Door, admin: Wire) -> None:
    resource = cls.resource
    obj = await put(door, admin, resource)
    name = obj["metadata"]["name"]
    found = (await admin.ask("GET", collection(resource))).json()
    assert (found["kind"], found["apiVersion"]) == (f"{resource.kind}List", resource.api_version)
    assert int(found["metadata"]["resourceVersion"]) >= int(obj["metadata"]["resourceVersion"])
    assert obj in found["items"]
    for selector in ("metadata.name", *resource.field_selectors):
        answer = await admin.ask("GET", f"{collection(resource)}?fieldSelector={selector}%3Dno-such-value")
        assert (answer.code, answer.json()["items"]) == (200, []), selector
    one = (await admin.ask("GET", f"{collection(resource)}?fieldSelector=metadata.name%3D{name}")).json()
    assert one["items"] == [obj]


@every_kind
async def test_its_changes_are_watched(cls: type[APIObject], door: Door, admin: Wire) -> None:
    resource = cls.resource
    revision = door.store.watch.revision
    watcher = await door.wire()
    watcher.request("GET", f"{collection(resource)}?watch=1&resourceVersion={revision}")
    assert (await watcher.head()).code == 200
    obj = await put(door, admin, resource)
    line = await watcher.line()
    assert (line["type"], line["object"]) == ("ADDED", obj)
    await admin.ask("DELETE", f"{collection(resource)}/{obj['metadata']['name']}")
    assert (await watcher.line())["type"] in ("DELETED", "MODIFIED")


@every_kind
async def test_a_label_is_patched_without_a_new_generation(cls: type[APIObject], door: Door, admin: Wire) -> None:
    resource = cls.resource
    obj = await put(door, admin, resource)
    url = f"{collection(resource)}/{obj['metadata']['name']}"
    patched = await admin.ask("PATCH", url, {"metadata": {"labels": {"conformance": "yes"}}}, MERGE)
    if "patch" not in resource.verbs:
        assert patched.code == 405
        return
    meta = patched.json()["metadata"]
    assert meta["labels"]["conformance"] == "yes"
    assert meta["generation"] == obj["metadata"]["generation"]
    assert int(meta["resourceVersion"]) > int(obj["metadata"]["resourceVersion"])
    again = await admin.ask("PATCH", url, {"metadata": {"labels": {"conformance": "yes"}}}, MERGE)
    assert again.json()["metadata"]["resourceVersion"] == meta["resourceVersion"]
    selected = await admin.ask("GET", f"{collection(resource)}?labelSelector=conformance%3Dyes")
    assert [o["metadata"]["name"] for o in selected.json()["items"]] == [meta["name"]]


@every_kind
async def test_unknown_fields_are_refused_when_asked(cls: type[APIObject], admin: Wire) -> None:
    resource = cls.resource
    obj = {**example(resource), "noSuchField": 1}
    answer = await admin.ask("POST", f"{collection(resource)}?fieldValidation=Strict", obj)
    assert answer.code == (400 if "create" in resource.verbs else 405)


@every_kind
async def test_it_is_deleted_or_says_what_it_waits_for(cls: type[APIObject], door: Door, admin: Wire) -> None:
    resource = cls.resource
    obj = await put(door, admin, resource)
    url = f"{collection(resource)}/{obj['metadata']['name']}"
    dry = await admin.ask("DELETE", url, {"dryRun": ["All"]})
    assert dry.code == 200
    assert (await admin.ask("GET", url)).json() == obj
    deleted = (await admin.ask("DELETE", url, {"propagationPolicy": "Background"})).json()
    left = await admin.ask("GET", url)
    if deleted["kind"] == "Status":
        assert (deleted["status"], deleted["details"]["uid"]) == ("Success", obj["metadata"]["uid"])
        assert left.code == 404
    else:
        assert left.json()["metadata"]["deletionTimestamp"]
        assert left.json()["metadata"]["finalizers"]


@every_kind
async def test_its_table_has_a_cell_for_every_column(cls: type[APIObject], door: Door, admin: Wire) -> None:
    resource = cls.resource
    obj = await put(door, admin, resource)
    table = (await admin.ask("GET", collection(resource), Accept=TABLE)).json()
    names = [column["name"] for column in table["columnDefinitions"]]
    own = {column.name for column in resource.columns}
    assert set(names) == own | (set() if resource.all_columns else {"Name", "Age"})
    row = next(r for r in table["rows"] if r["cells"][names.index("Name")] == obj["metadata"]["name"])
    assert len(row["cells"]) == len(names)
    assert None not in row["cells"]
    assert row["object"]["metadata"] == obj["metadata"]


@every_kind
async def test_discovery_names_it(cls: type[APIObject], admin: Wire) -> None:
    resource = cls.resource
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    listed = {r["name"]: r for r in (await admin.ask("GET", root)).json()["resources"]}
    entry = listed[resource.plural]
    assert (entry["kind"], entry["namespaced"], entry["singularName"]) == (
        resource.kind,
        resource.namespaced,
        resource.singular,
    )
    assert set(entry["verbs"]) == set(resource.verbs) <= set(ALL_VERBS)
    assert (f"{resource.plural}/status" in listed) == resource.status


async def test_kubectl_explains_every_kind(door: Door) -> None:
    import asyncio

    config = door.kubeconfig()
    for cls in KINDS:
        command = kubectl.Kubectl(kubectl.newest(), config).command("explain", cls.resource.qualified, "--recursive")
        text = (await asyncio.to_thread(run, *command)).stdout
        assert f"KIND:       {cls.resource.kind}" in text
        first = (cls.__doc__ or "").split(".")[0].split("\n")[0]
        assert first.split(" ")[0] in text
        for field in cls.model_fields:
            assert f"  {field}\t" in text, (cls.resource.kind, field)


async def test_every_field_of_every_kind_is_explained(admin: Wire) -> None:
    listed = (await admin.ask("GET", "/openapi/v3")).json()["paths"]
    seen = 0
    for path, where in listed.items():
        document = (await admin.ask("GET", where["serverRelativeURL"])).json()
        for name, model in document.get("components", {}).get("schemas", {}).items():
            for field, described in model.get("properties", {}).items():
                assert described.get("description"), (path, name, field)
                seen += 1
    assert seen > 100


def test_every_kind_has_an_example() -> None:
    assert all(example(cls.resource)["kind"] == cls.resource.kind for cls in KINDS)
