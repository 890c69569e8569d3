"""OpenAPI v3 documents, one per group and version: what kubectl validates with and explains from."""

from __future__ import annotations

from typing import Any

from .jsonschema import PREFIX, Schema, definitions
from .meta import APIObject
from .registry import Registry, Resource

_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_SHARED = {"ObjectMeta", "OwnerReference", "Condition"}


def documents(registry: Registry) -> dict[tuple[str, str], dict[str, Any]]:
    """(group, version) -> document."""
    out: dict[tuple[str, str], dict[str, Any]] = {}
    for cls in registry:
        r = cls.resource
        document = out.setdefault((r.group, r.version), _empty(r))
        _add_schemas(cls, document["components"]["schemas"])
        document["paths"].update(_paths(r))
    return out


def _empty(r: Resource) -> dict[str, Any]:
    return {
        "openapi": "3.0.0",
        "info": {"title": "Horchestra", "version": r.version},
        "paths": {},
        "components": {"schemas": {}},
    }


def model_prefix(r: Resource) -> str:
    """`dev.ks-tool.orch.v1.`, `io.k8s.api.core.v1.`: reversed group and version before a model's name."""
    group = "core.api.k8s.io" if not r.group else r.group
    return ".".join(reversed(group.split("."))) + f".{r.version}."


def _add_schemas(cls: type[APIObject], schemas: dict[str, Schema]) -> None:
    root, models = definitions(cls)
    r = cls.resource
    prefix = model_prefix(r)
    gvk = [{"group": r.group, "version": r.version, "kind": r.kind}]
    names: dict[str, str] = {}
    for name in models:
        full = (_META if name in _SHARED else prefix) + name
        names[name] = full
    for name, schema in models.items():
        taken = schemas.get(names[name])
        if taken is not None and taken != _renamed(schema, names):
            names[name] = prefix + r.kind + name
    for name, schema in models.items():
        schemas[names[name]] = _renamed(schema, names)
    schemas[prefix + r.kind] = {**_renamed(root, names), "x-kubernetes-group-version-kind": gvk}
    schemas[prefix + r.kind + "List"] = _list_schema(r, prefix)


def _list_schema(r: Resource, prefix: str) -> Schema:
    return {
        "type": "object",
        "description": f"A list of {r.kind} objects.",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Group and version of the list's schema."},
            "kind": {"type": "string", "description": f"{r.kind}List"},
            "metadata": {
                "type": "object",
                "description": "resourceVersion to watch from; continue where there is more.",
                "x-kubernetes-preserve-unknown-fields": True,
            },
            "items": {
                "type": "array",
                "description": f"The {r.kind} objects.",
                "items": {"$ref": f"{PREFIX}{prefix}{r.kind}"},
            },
        },
        "x-kubernetes-group-version-kind": [{"group": r.group, "version": r.version, "kind": r.kind + "List"}],
    }


def _renamed(schema: Schema, names: dict[str, str]) -> Schema:
    """With references to full names; one with a description or default beside it goes into allOf, as clients expect."""
    if "$ref" in schema:
        target = {"$ref": PREFIX + names[schema["$ref"].removeprefix(PREFIX)]}
        beside = {k: v for k, v in schema.items() if k != "$ref"}
        return {"allOf": [target], **beside} if beside else target
    out = dict(schema)
    if "properties" in out:
        out["properties"] = {name: _renamed(value, names) for name, value in out["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in out:
            out[key] = _renamed(out[key], names)
    if "anyOf" in out:
        out["anyOf"] = [_renamed(branch, names) for branch in out["anyOf"]]
    return out


_OPERATIONS = {
    # (method, on one object): (verb, has a body)
    ("get", True): ("get", False),
    ("put", True): ("update", True),
    ("patch", True): ("patch", True),
    ("delete", True): ("delete", False),
    ("get", False): ("list", False),
    ("post", False): ("create", True),
    ("delete", False): ("deletecollection", False),
}
_PATCH_TYPES = ("application/merge-patch+json", "application/json-patch+json")
"""Strategic merge is not listed: clients then use the merge keys they know instead of looking for them in here."""


def _paths(r: Resource) -> dict[str, Any]:
    root = f"/apis/{r.group}/{r.version}" if r.group else f"/api/{r.version}"
    scope = "/namespaces/{namespace}" if r.namespaced else ""
    base = f"{root}{scope}/{r.plural}"
    paths = {base: _path(r, named=False), base + "/{name}": _path(r, named=True)}
    if r.status:
        status = _path(r, named=True)
        status.pop("delete", None)
        paths[base + "/{name}/status"] = status
    if r.namespaced and "list" in r.verbs:
        everywhere = {k: v for k, v in _path(r, named=False).items() if k == "get"}
        paths[f"{root}/{r.plural}"] = everywhere
    return {path: item for path, item in paths.items() if item}


def _path(r: Resource, *, named: bool) -> dict[str, Any]:
    out = {}
    for (method, on_one), (verb, body) in _OPERATIONS.items():
        if on_one is named and verb in r.verbs:
            out[method] = _operation(r, method, verb, body, named)
    return out


def _operation(r: Resource, method: str, verb: str, body: bool, named: bool) -> dict[str, Any]:
    schema = {"$ref": f"{PREFIX}{model_prefix(r)}{r.kind}{'List' if verb == 'list' else ''}"}
    if verb in ("delete", "deletecollection"):
        schema = {"type": "object"}
    query = ["dryRun", "fieldManager", "fieldValidation"] if body else ["labelSelector", "fieldSelector", "limit"]
    parameters: list[Schema] = [{"name": n, "in": "query", "schema": {"type": "string"}} for n in query]
    places = (["namespace"] if r.namespaced else []) + (["name"] if named else [])
    parameters += [{"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in places]
    operation: dict[str, Any] = {
        "x-kubernetes-action": {"create": "post", "update": "put"}.get(verb, verb),
        "x-kubernetes-group-version-kind": {"group": r.group, "version": r.version, "kind": r.kind},
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": schema}}}},
    }
    if body:
        types = _PATCH_TYPES if method == "patch" else ("application/json", "application/yaml")
        content = {t: {"schema": {"type": "object"} if method == "patch" else schema} for t in types}
        operation["requestBody"] = {"required": True, "content": content}
    return operation
