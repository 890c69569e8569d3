"""Schemas derived from classes, and what they drive."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import Field

from horchestra import kinds
from horchestra.apimachinery import schema
from horchestra.apimachinery.codec import encode
from horchestra.apimachinery.errors import StatusError
from horchestra.apimachinery.meta import APIObject, Model
from horchestra.apimachinery.registry import Registry, Resource


class Item(Model):
    name: str
    """Name of the item."""
    kind: Literal["A", "B"] = "A"


class Part(Model):
    mode: Literal["fast", "slow"] = "fast"
    """How."""
    off: bool = False


class ThingSpec(Model):
    text: str = Field(min_length=1, max_length=5, pattern="^[a-z]*$")
    """Some text."""
    number: int = Field(default=3, gt=0, lt=10)
    """Some number."""
    amount: str | int | float = "1"
    maybe: int | None = None
    """Perhaps a number."""
    part: Part = Field(default_factory=Part)
    """A part."""
    items: list[Item] = Field(default_factory=list)
    either: dict[str, str] | list[Item] = Field(default_factory=dict)
    free: dict[str, Any] = Field(default_factory=dict)
    table: dict[str, Item] = Field(default_factory=dict)


class Thing(APIObject):
    """A thing."""

    resource = Resource(
        group="test.example", version="v2", kind="Thing", plural="things", singular="thing", status=True
    )
    spec: ThingSpec = Field(default=...)
    """What it is."""

    def validate_object(self) -> list[Any]:
        return []


def thing(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", "namespace": "n"}, "spec": {"text": "x", **spec}}


def faults(obj: dict[str, Any]) -> list[tuple[str, str, str]]:
    with pytest.raises(StatusError) as caught:
        schema.validate(Thing, obj, encode(obj))
    assert (caught.value.code, caught.value.kind, caught.value.group) == (422, "Thing", "test.example")
    return [(c.field, c.reason, c.message) for c in caught.value.causes]


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from walk(part)
    elif isinstance(value, list):
        for part in value:
            yield from walk(part)


SPEC = schema.structural(Thing)["properties"]["spec"]


def test_the_structural_schema_stands_alone() -> None:
    for cls in (Thing, *kinds.builtin()):
        text = json.dumps(schema.structural(cls))
        for foreign in ("$ref", "$defs", "title", "null", "const", "discriminator"):
            assert f'"{foreign}"' not in text
    assert SPEC["required"] == ["text"]
    assert SPEC["properties"]["maybe"] == {"type": "integer", "description": "Perhaps a number."}
    assert SPEC["properties"]["text"]["description"] == "Some text."
    assert SPEC["properties"]["amount"]["x-kubernetes-int-or-string"] is True
    assert SPEC["properties"]["free"]["x-kubernetes-preserve-unknown-fields"] is True
    assert SPEC["properties"]["part"]["default"] == {}
    assert SPEC["properties"]["part"]["properties"]["mode"]["enum"] == ["fast", "slow"]
    number = SPEC["properties"]["number"]
    assert (number["minimum"], number["exclusiveMinimum"], number["default"]) == (0, True, 3)


def test_defaults_that_mean_something_are_filled() -> None:
    obj = thing(table={"k": {"name": "n"}}, items=[{"name": "i"}])
    schema.apply_defaults(Thing, obj)
    assert obj["spec"] == {
        "text": "x",
        "number": 3,
        "amount": "1",
        "part": {"mode": "fast"},
        "items": [{"name": "i"}],
        "table": {"k": {"name": "n", "kind": "A"}},
    }
    again = json.loads(json.dumps(obj))
    schema.apply_defaults(Thing, again)
    assert again == obj
    kept = thing(number=5, part={"mode": "slow"})
    schema.apply_defaults(Thing, kept)
    assert (kept["spec"]["number"], kept["spec"]["part"]) == (5, {"mode": "slow"})


@pytest.mark.parametrize("odd", [None, 5, "x", [], {"spec": 5}, {"spec": {"part": [], "items": {"a": 1}, "table": []}}])
def test_wrong_types_are_left_for_validation(odd: Any) -> None:
    obj = odd if isinstance(odd, dict) else {"spec": odd}
    schema.prune(Thing, obj)
    schema.apply_defaults(Thing, obj)


def test_unknown_fields_go_wherever_they_are_and_nulls_with_them() -> None:
    obj = thing(
        bogus=1,
        maybe=None,
        part={"mode": "fast", "x": 1},
        items=[{"name": "a"}, {"name": "b", "y": 1}],
        either=[{"name": "c", "z": 1}],
        free={"anything": {"goes": None}},
        table={"key": {"name": "n", "w": 1}},
    )
    obj["extra"] = {}
    obj["metadata"].update(selfLink="/x", annotations={"free": "text"}, creationTimestamp=None)
    assert sorted(schema.prune(Thing, obj)) == [
        "extra",
        "metadata.selfLink",
        "spec.bogus",
        "spec.either[0].z",
        "spec.items[1].y",
        "spec.part.x",
        "spec.table[key].w",
    ]
    assert obj["spec"]["free"] == {"anything": {"goes": None}}
    assert "maybe" not in obj["spec"]
    assert "creationTimestamp" not in obj["metadata"]
    assert schema.prune(Thing, obj) == []
    free = thing(either={"any": "name"})
    assert schema.prune(Thing, free) == []


def test_all_faults_are_told_in_words_with_their_paths() -> None:
    obj = thing(
        number=70, amount=[], maybe="x", part={"mode": "odd", "off": "no"}, items=[{"kind": "C"}, 5], table={"a.b": {}}
    )
    obj["spec"]["text"] = "TOO LONG"
    assert faults(obj) == [
        ("spec.text", "FieldValueTooLong", "Too long: may not be longer than 5"),
        ("spec.number", "FieldValueInvalid", "Invalid value: 70: must be less than 10"),
        ("spec.amount", "FieldValueTypeInvalid", 'Invalid value: "list": must be text or a whole number or a number'),
        ("spec.maybe", "FieldValueTypeInvalid", 'Invalid value: "x": must be a whole number'),
        ("spec.part.mode", "FieldValueNotSupported", 'Unsupported value: "odd": supported values: "fast", "slow"'),
        ("spec.part.off", "FieldValueTypeInvalid", 'Invalid value: "no": must be true or false'),
        ("spec.items[0].name", "FieldValueRequired", "Required value"),
        ("spec.items[0].kind", "FieldValueNotSupported", 'Unsupported value: "C": supported values: "A", "B"'),
        ("spec.items[1]", "FieldValueTypeInvalid", "Invalid value: 5: must be a map"),
        ("spec.table[a.b].name", "FieldValueRequired", "Required value"),
    ]
    assert faults({"metadata": {"name": "a", "namespace": "n"}}) == [("spec", "FieldValueRequired", "Required value")]
    assert faults(thing(text="A"))[0][2] == 'Invalid value: "A": must match ^[a-z]*$'
    assert faults(thing(text=""))[0][2] == 'Invalid value: "": must have at least 1'
    assert faults(thing(number=1.5))[0][1] in ("FieldValueTypeInvalid", "FieldValueInvalid")
    assert faults(thing(number=True))[0][1] == "FieldValueTypeInvalid"
    assert faults(thing(text=5))[0][2] == "Invalid value: 5: must be text"


@pytest.mark.parametrize(
    ("either", "found"),
    [
        (5, [("spec.either", "Invalid value: 5: must be a map or a list")]),
        ({"a": 1}, [("spec.either.a", "Invalid value: 1: must be text")]),
        ([{"name": 1}], [("spec.either[0].name", "Invalid value: 1: must be text")]),
        ([{}], [("spec.either[0].name", "Required value")]),
        ([5], [("spec.either[0]", "Invalid value: 5: must be a map")]),
    ],
)
def test_of_a_union_the_branch_that_was_meant_is_judged(either: Any, found: list[tuple[str, str]]) -> None:
    assert [(field, message) for field, _, message in faults(thing(either=either))] == found


def test_a_secret_kind_repeats_no_values() -> None:
    secret = next(cls for cls in kinds.builtin() if cls.resource.kind == "Secret")
    obj = {"metadata": {"name": "a", "namespace": "n"}, "data": {"password": 123456}}
    with pytest.raises(StatusError) as caught:
        schema.validate(secret, obj, encode(obj))
    assert "123456" not in caught.value.message
    assert caught.value.causes[0].field == "data.password"


def meta_faults(**meta: Any) -> list[str]:
    obj = thing()
    obj["metadata"].update(meta)
    with pytest.raises(StatusError) as caught:
        schema.validate(Thing, obj, encode(obj))
    return [c.field for c in caught.value.causes]


OWNER = {"apiVersion": "v1", "kind": "X", "name": "x", "uid": "1"}


@pytest.mark.parametrize(
    ("meta", "fields"),
    [
        ({"name": "A"}, ["metadata.name"]),
        ({"name": "a/b"}, ["metadata.name"]),
        ({"name": "a\n"}, ["metadata.name"]),
        ({"name": "a" * 254}, ["metadata.name"]),
        ({"name": ""}, ["metadata.name"]),
        ({"namespace": ""}, ["metadata.namespace"]),
        ({"labels": {"-x": "a", "ok/ok": "b c"}}, ["metadata.labels[-x]", "metadata.labels[ok/ok]"]),
        ({"labels": {"a": "x" * 64}}, ["metadata.labels[a]"]),
        ({"labels": {"a": 5}}, ["metadata.labels.a"]),
        ({"annotations": {"b c": "x"}}, ["metadata.annotations[b c]"]),
        ({"annotations": {"a": "x" * 262144}}, ["metadata.annotations"]),
        ({"finalizers": ["not ok", "ok"]}, ["metadata.finalizers[0]"]),
        ({"ownerReferences": [{**OWNER, "uid": ""}]}, ["metadata.ownerReferences[0].uid"]),
        (
            {"ownerReferences": [{"kind": "X"}]},
            [f"metadata.ownerReferences[0].{f}" for f in ("apiVersion", "name", "uid")],
        ),
        ({"ownerReferences": [{**OWNER, "controller": True}] * 2}, ["metadata.ownerReferences"]),
    ],
)
def test_metadata_is_checked_for_every_kind(meta: dict[str, Any], fields: list[str]) -> None:
    assert meta_faults(**meta) == fields


def test_good_metadata_passes() -> None:
    obj = thing()
    obj["metadata"].update(
        labels={"a": "", "example.com/b": "C_d.e-f"},
        annotations={"Example.com/B": "anything\n", "x": "y" * 262000},
        finalizers=["kubernetes", "orch.ks-tool.dev/node"],
        ownerReferences=[{**OWNER, "controller": True}, OWNER],
    )
    assert schema.validate(Thing, obj, encode(obj)).metadata.labels["a"] == ""


# Documents


def documents() -> dict[tuple[str, str], dict[str, Any]]:
    return schema.openapi(kinds.builtin())


@pytest.mark.parametrize("cls", list(kinds.builtin()), ids=lambda cls: cls.resource.kind)
def test_every_kind_is_in_the_document_of_its_group_as_kubectl_looks_for_it(cls: type[APIObject]) -> None:
    r = cls.resource
    document = documents()[r.group, r.version]
    gvk = {"group": r.group, "version": r.version, "kind": r.kind}
    root = f"/apis/{r.group}/{r.version}" if r.group else f"/api/{r.version}"
    scope = "/namespaces/{namespace}" if r.namespaced else ""
    item = document["paths"][f"{root}{scope}/{r.plural}/{{name}}"]
    for operation in item.values():
        assert operation["x-kubernetes-group-version-kind"] == gvk
    if "patch" in r.verbs:
        parameters = [p["name"] for p in item["patch"]["parameters"] if p["in"] == "query"]
        assert "fieldValidation" in parameters
        assert "application/strategic-merge-patch+json" not in item["patch"]["requestBody"]["content"]
    named = [
        s for s in document["components"]["schemas"].values() if gvk in s.get("x-kubernetes-group-version-kind", [])
    ]
    assert len(named) == 1
    assert named[0]["properties"]["metadata"]["allOf"] == [
        {"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
    ]


def test_every_reference_leads_somewhere_and_names_are_those_of_kubernetes() -> None:
    for document in documents().values():
        schemas = document["components"]["schemas"]
        for part in walk(document):
            if isinstance(part.get("$ref"), str):
                assert part["$ref"].removeprefix("#/components/schemas/") in schemas
        for name in schemas:
            assert re.fullmatch(r"(dev\.ks-tool\.orch|io\.k8s\.[a-z.]+)\.v1\.[A-Za-z]+", name)
    assert "dev.ks-tool.orch.v1.ApplicationSpec" in documents()["orch.ks-tool.dev", "v1"]["components"]["schemas"]
    assert "io.k8s.api.core.v1.Secret" in documents()["", "v1"]["components"]["schemas"]


def test_models_of_one_name_and_two_shapes_do_not_mix() -> None:
    def kind(name: str, model: type[Model]) -> type[APIObject]:
        resource = Resource("g.example", "v1", name, name.lower() + "s", name.lower())
        return type(
            name, (APIObject,), {"resource": resource, "__annotations__": {"spec": model}, "__module__": __name__}
        )

    one = type("Spec", (Model,), {"__annotations__": {"a": str}, "__module__": __name__})
    two = type("Spec", (Model,), {"__annotations__": {"b": str}, "__module__": __name__})
    registry = Registry()
    registry.add(kind("One", one))
    registry.add(kind("Two", two))
    schemas = schema.openapi(registry)["g.example", "v1"]["components"]["schemas"]

    def fields(name: str) -> set[str]:
        target = schemas[f"example.g.v1.{name}"]["properties"]["spec"]["$ref"].rpartition("/")[2]
        return set(schemas[target]["properties"])

    assert (fields("One"), fields("Two")) == ({"a"}, {"b"})


def test_every_field_of_every_kind_is_explained() -> None:
    for document in documents().values():
        for name, model in document["components"]["schemas"].items():
            for field, described in model.get("properties", {}).items():
                if not name.endswith("List"):
                    assert described.get("description"), f"{name}.{field}"


@pytest.mark.parametrize(
    ("kind", "spec", "rule"),
    [
        ("applications.orch.ks-tool.dev", {"image": "web"}, "a-z, 0-9 and '-'"),
        ("namespaces", {}, "a-z, 0-9 and '-'"),
        ("nodes", {}, "a-z, 0-9, '-' and '.'"),
    ],
)
def test_a_wrong_name_is_told_one_rule_the_tighter(kind: str, spec: dict[str, Any], rule: str) -> None:
    cls = kinds.builtin().qualified(kind)
    for name in ("Web_1", "a" * 300):
        meta = {"name": name, **({"namespace": "default"} if cls.resource.namespaced else {})}
        obj = {"apiVersion": cls.resource.api_version, "kind": cls.resource.kind, "metadata": meta, "spec": spec}
        with pytest.raises(StatusError) as caught:
            schema.validate(cls, obj, encode(obj))
        (cause,) = caught.value.causes
        assert cause.message.endswith(
            f"must be {rule}, begin and end with a letter or digit, and have at most 63 characters"
        )
        assert cause.field == "metadata.name"


def test_a_missing_name_is_only_missing() -> None:
    cls = kinds.builtin().qualified("namespaces")
    obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {}}
    with pytest.raises(StatusError) as caught:
        schema.validate(cls, obj, encode(obj))
    assert [c.reason for c in caught.value.causes] == ["FieldValueRequired"]
