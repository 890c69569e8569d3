"""A kind's class as structural OpenAPI v3, and what it drives: defaults, pruning, validation, documents."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from pydantic import ValidationError

from .errors import Cause, invalid
from .jsonschema import Schema, definitions, inline
from .meta import APIObject
from .metadata import metadata_causes
from .openapi import documents as openapi
from .validation import field_causes

__all__ = ["apply_defaults", "openapi", "prune", "structural", "validate"]


@cache
def structural(cls: type[APIObject]) -> dict[str, Any]:
    """OpenAPI v3 schema of one kind, self-contained (no $ref). Shared: do not change it.

    A default of `{}` means that the part is made when absent, if anything in it has a default."""
    r = cls.resource
    gvk = {"group": r.group, "version": r.version, "kind": r.kind}
    return {**inline(*definitions(cls)), "x-kubernetes-group-version-kind": [gvk]}


def apply_defaults(cls: type[APIObject], obj: dict[str, Any]) -> None:
    """Fills what is absent, in place. Defaults that mean nothing (empty, false, 0) stay absent, as in Kubernetes.

    Lists are kept as sent: `kubectl apply` compares them whole, so that a filled item would make each later apply of the
    same file read `configured`. Their items' defaults are the class's, at reading."""
    _shape(cls).fill(obj)


def prune(cls: type[APIObject], obj: dict[str, Any]) -> list[str]:
    """Removes unknown fields, and fields that are null, in place; returns the paths of the unknown ones."""
    unknown: list[str] = []
    _shape(cls).prune(obj, "", unknown)
    return unknown


def validate(cls: type[APIObject], obj: dict[str, Any], body: bytes, *, rules: bool = True) -> APIObject:
    """The typed object; `body` is `obj` encoded. Raises StatusError Invalid with every bad field at once: those of
    schema and metadata, and where the schema is kept, those of the kind's `validate_object` (unless not `rules`)."""
    r = cls.resource
    causes: list[Cause] = metadata_causes(obj.get("metadata"), r.namespaced)
    typed = None
    try:
        typed = cls.model_validate_json(body)
    except ValidationError as error:
        causes += field_causes(error, obj, secret=r.encrypted)
    if typed is not None and rules:
        causes += typed.validate_object()
    if causes or typed is None:
        meta = obj.get("metadata")
        name = meta.get("name") if isinstance(meta, dict) else ""
        raise invalid(r.group, r.kind, str(name or ""), causes)
    return typed


class _Shape:
    """What defaulting and pruning need of a schema, prepared once."""

    __slots__ = ("defaults", "element", "fields", "mapping", "opaque", "sequence")

    def __init__(self, schema: Schema) -> None:
        self.opaque = True
        """Nothing below has defaults or can be unknown."""
        self.fields: dict[str, _Shape] | None = None
        self.defaults: list[tuple[str, Any]] = []
        self.element: _Shape | None = None
        """Of the items of a list or the values of a map."""
        self.mapping: _Shape | None = None
        self.sequence: _Shape | None = None
        """Of the branches of a union: the one for objects, and the one for lists."""
        if "properties" in schema:
            self.opaque = False
            self.fields = {name: _Shape(value) for name, value in schema["properties"].items()}
            self.defaults = [(n, v["default"]) for n, v in schema["properties"].items() if self._matters(n, v)]
        elif "items" in schema or "additionalProperties" in schema:
            self.element = _Shape(schema.get("items") or schema.get("additionalProperties") or {})
            self.opaque = self.element.opaque
        elif "anyOf" in schema:
            by_type = {branch.get("type"): _Shape(branch) for branch in reversed(schema["anyOf"])}
            self.mapping, self.sequence = by_type.get("object"), by_type.get("array")
            self.opaque = all(s is None or s.opaque for s in (self.mapping, self.sequence))

    def _matters(self, name: str, schema: Schema) -> bool:
        default = schema.get("default")
        assert self.fields is not None
        return bool(default) or (default == {} and bool(self.fields[name].defaults))

    def fill(self, value: Any) -> None:
        if self.opaque:
            return
        if isinstance(value, dict):
            if self.fields is not None:
                for name, default in self.defaults:
                    if name not in value:
                        value[name] = copy.deepcopy(default) if isinstance(default, (dict, list)) else default
                for name, part in value.items():
                    if isinstance(part, (dict, list)) and name in self.fields:
                        self.fields[name].fill(part)
            elif self.mapping is not None:
                self.mapping.fill(value)
            elif self.element is not None:
                for part in value.values():
                    self.element.fill(part)

    def prune(self, value: Any, path: str, unknown: list[str]) -> None:
        if self.opaque:
            return
        if isinstance(value, dict):
            if self.fields is not None:
                self._prune_fields(value, path, unknown)
            elif self.mapping is not None:
                self.mapping.prune(value, path, unknown)
            elif self.element is not None:
                for name, part in value.items():
                    self.element.prune(part, f"{path}[{name}]", unknown)
        elif isinstance(value, list):
            if self.sequence is not None:
                self.sequence.prune(value, path, unknown)
            elif self.element is not None:
                for at, part in enumerate(value):
                    self.element.prune(part, f"{path}[{at}]", unknown)

    def _prune_fields(self, value: dict[str, Any], path: str, unknown: list[str]) -> None:
        assert self.fields is not None
        gone = []
        for name, part in value.items():
            shape = self.fields.get(name)
            if shape is None:
                gone.append(name)
                unknown.append(f"{path}.{name}" if path else name)
            elif part is None:
                gone.append(name)
            elif not shape.opaque:
                shape.prune(part, f"{path}.{name}" if path else name, unknown)
        for name in gone:
            del value[name]


@cache
def _shape(cls: type[APIObject]) -> _Shape:
    return _Shape(structural(cls))
