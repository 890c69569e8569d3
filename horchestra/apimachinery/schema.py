"""A kind's class as structural OpenAPI v3, and what it drives: defaults, pruning, validation, documents."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial
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

    Lists are kept as sent: `kubectl apply` compares them whole, so that a filled item would make each later apply of
    the same file read `configured`. Their items' defaults are the class's, at reading."""
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
        typed = _typed(cls, obj, body)
    except ValidationError as error:
        causes += field_causes(error, obj, secret=r.encrypted)
    if typed is not None and rules:
        causes = _once(causes, typed.validate_object())
    if causes or typed is None:
        meta = obj.get("metadata")
        name = meta.get("name") if isinstance(meta, dict) else ""
        raise invalid(r.group, r.kind, str(name or ""), causes)
    return typed


def _once(general: list[Cause], of_kind: list[Cause]) -> list[Cause]:
    """A field has one answer: that it is missing, else the kind's rule, which is the tighter one."""
    missing = {c.field for c in general if c.reason == "FieldValueRequired"}
    said = [c for c in of_kind if c.field not in missing]
    fields = {c.field for c in said}
    return [*(c for c in general if c.field not in fields), *said]


def _typed(cls: type[APIObject], obj: dict[str, Any], body: bytes) -> APIObject:
    """From the values, which takes half as long as from JSON; but what is wrong is said in JSON's terms."""
    try:
        return cls.model_validate(obj)
    except ValidationError:
        return cls.model_validate_json(body)


class _Shape:
    """What defaulting and pruning need of a schema, prepared once. Each step visits only what can matter to it."""

    __slots__ = (
        "defaulted",
        "defaults",
        "element",
        "fields",
        "filled",
        "mapping",
        "open",
        "prunable",
        "sequence",
    )

    def __init__(self, schema: Schema) -> None:
        self.fields: dict[str, _Shape] = {}
        self.open = "properties" not in schema
        """Any field is known."""
        self.defaults: list[tuple[str, Callable[[], Any]]] = []
        self.defaulted: list[tuple[str, _Shape]] = []
        """Fields with defaults in them."""
        self.element: _Shape | None = None
        """Of the items of a list or the values of a map."""
        self.filled: _Shape | None = None
        """Of the values of a map, when they have defaults."""
        self.mapping: _Shape | None = None
        self.sequence: _Shape | None = None
        """Of the branches of a union: the one for objects, and the one for lists."""
        if not self.open:
            self._take_fields(schema["properties"])
        elif "items" in schema or "additionalProperties" in schema:
            self.element = _Shape(schema.get("items") or schema.get("additionalProperties") or {})
            if "items" not in schema and self.element.has_defaults():
                self.filled = self.element
        elif "anyOf" in schema:
            by_type = {branch.get("type"): _Shape(branch) for branch in reversed(schema["anyOf"])}
            self.mapping, self.sequence = by_type.get("object"), by_type.get("array")
        parts = [shape for shape in (self.element, self.mapping, self.sequence) if shape is not None]
        self.prunable: bool = not self.open or any(shape.prunable for shape in parts)

    def _take_fields(self, properties: dict[str, Schema]) -> None:
        self.fields = {name: _Shape(value) for name, value in properties.items()}
        for name, schema in properties.items():
            default, shape = schema.get("default"), self.fields[name]
            if default or (default == {} and shape.has_defaults()):
                self.defaults.append((name, _maker(default)))
            if shape.has_defaults():
                self.defaulted.append((name, shape))

    def has_defaults(self) -> bool:
        """Whether fill() could do anything."""
        return bool(
            self.defaults or self.defaulted or self.filled or (self.mapping is not None and self.mapping.has_defaults())
        )

    def fill(self, value: Any) -> None:
        if isinstance(value, dict):
            for name, made in self.defaults:
                if name not in value:
                    value[name] = made()
            for name, shape in self.defaulted:
                if name in value:
                    shape.fill(value[name])
            if self.mapping is not None:
                self.mapping.fill(value)
            elif self.filled is not None:
                for part in value.values():
                    self.filled.fill(part)

    def prune(self, value: Any, path: str, unknown: list[str]) -> None:
        if isinstance(value, dict):
            if not self.open:
                self._prune_fields(value, path, unknown)
            elif self.mapping is not None:
                self.mapping.prune(value, path, unknown)
            elif self.element is not None and self.element.prunable:
                for name, part in value.items():
                    self.element.prune(part, f"{path}[{name}]", unknown)
        elif isinstance(value, list):
            if self.sequence is not None:
                self.sequence.prune(value, path, unknown)
            elif self.element is not None and self.element.prunable:
                for at, part in enumerate(value):
                    self.element.prune(part, f"{path}[{at}]", unknown)

    def _prune_fields(self, value: dict[str, Any], path: str, unknown: list[str]) -> None:
        gone = []
        for name, part in value.items():
            found = self.fields.get(name)
            if found is None:
                gone.append(name)
                unknown.append(f"{path}.{name}" if path else name)
            elif part is None:
                gone.append(name)
            elif found.prunable:
                found.prune(part, f"{path}.{name}" if path else name, unknown)
        for name in gone:
            del value[name]


def _maker(default: Any) -> Callable[[], Any]:
    """Makes the default anew where somebody could change it."""
    if isinstance(default, (dict, list)):
        return partial(copy.deepcopy, default) if default else type(default)
    return lambda: default


@cache
def _shape(cls: type[APIObject]) -> _Shape:
    return _Shape(structural(cls))
