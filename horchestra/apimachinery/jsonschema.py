"""pydantic's JSON Schema brought into the dialect that Kubernetes clients read (OpenAPI 3.0)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

PREFIX = "#/components/schemas/"

_KEPT = (
    "description",
    "default",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "pattern",
    "format",
    "uniqueItems",
    "minProperties",
    "maxProperties",
    "multipleOf",
)
_SCALARS = {"string", "integer", "number"}

Schema = dict[str, Any]


class _Generator(GenerateJsonSchema):
    """Says `default: {}` for a part that is made by its class, so that the defaults within it are filled."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        factory = schema.get("default_factory")
        if isinstance(factory, type) and issubclass(factory, BaseModel):
            return {**self.generate_inner(schema["schema"]), "default": {}}
        return super().default_schema(schema)


def definitions(cls: type[BaseModel]) -> tuple[Schema, dict[str, Schema]]:
    """(schema of the class, schemas of the models in it by name); models are referred to as {"$ref": PREFIX + name}."""
    generated = cls.model_json_schema(
        by_alias=True, ref_template=PREFIX + "{model}", schema_generator=_Generator, mode="validation"
    )
    models: dict[str, Schema] = generated.pop("$defs", {})
    return _convert(generated), {name: _convert(schema) for name, schema in models.items()}


def inline(schema: Schema, models: dict[str, Schema]) -> Schema:
    """The schema with every reference replaced by what it refers to; a reference's description and default win."""
    if "$ref" in schema:
        beside = {k: v for k, v in schema.items() if k != "$ref"}
        return {**inline(models[schema["$ref"].removeprefix(PREFIX)], models), **beside}
    out = dict(schema)
    if "properties" in out:
        out["properties"] = {name: inline(value, models) for name, value in out["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in out:
            out[key] = inline(out[key], models)
    if "anyOf" in out:
        out["anyOf"] = [inline(branch, models) for branch in out["anyOf"]]
    return out


def _convert(schema: Schema) -> Schema:
    out: Schema = {key: schema[key] for key in _KEPT if schema.get(key) is not None}
    if "const" in schema:
        out["enum"] = [schema["const"]]
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if exclusive in schema:
            out[bound], out[exclusive] = schema[exclusive], True
    either: list[Schema] = schema.get("anyOf") or schema.get("oneOf") or []
    branches = [branch for branch in either if branch.get("type") != "null"]
    if len(branches) == 1:
        return {**_convert(branches[0]), **out}
    if branches:
        return {**_union([_convert(branch) for branch in branches]), **out}
    if "$ref" in schema:
        return {"$ref": schema["$ref"], **out}
    if "type" not in schema and "enum" not in schema:
        return {"x-kubernetes-preserve-unknown-fields": True, **out}
    out["type"] = schema.get("type") or _type_of(out["enum"])
    if out["type"] == "object":
        _object(schema, out)
    if out["type"] == "array":
        out["items"] = _convert(schema.get("items") or {})
    return out


def _object(schema: Schema, out: Schema) -> None:
    if "properties" in schema:
        out["properties"] = {name: _convert(value) for name, value in schema["properties"].items()}
        if schema.get("required"):
            out["required"] = schema["required"]
    elif isinstance(values := schema.get("additionalProperties"), dict):
        out["additionalProperties"] = _convert(values)
    else:
        out["x-kubernetes-preserve-unknown-fields"] = True


def _union(branches: list[Schema]) -> Schema:
    types = {branch.get("type") for branch in branches}
    if "string" in types and types <= _SCALARS:
        return {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    return {"x-kubernetes-preserve-unknown-fields": True, "anyOf": branches}


def _type_of(values: list[Any]) -> str:
    if all(isinstance(v, str) for v in values):
        return "string"
    return "boolean" if all(isinstance(v, bool) for v in values) else "integer"
