"""Rules for metadata that hold for every kind."""

from __future__ import annotations

from typing import Any

from .errors import Cause
from .labels import key_fault, value_fault
from .names import name_fault

MAX_ANNOTATIONS = 256 * 1024
"""Bytes of all keys and values together."""


def metadata_causes(meta: Any, namespaced: bool) -> list[Cause]:
    """Everything wrong with `metadata` as it is to be stored. Wrong types are left to the schema."""
    if not isinstance(meta, dict):
        return []
    causes = _names(meta, namespaced)
    for key, value in _strings(meta.get("labels")):
        fault = key_fault(key) or value_fault(value)
        if fault:
            causes.append(_invalid(f"metadata.labels[{key[:300]}]", fault))
    size = 0
    for key, value in _strings(meta.get("annotations")):
        fault = key_fault(key.lower())
        if fault:
            causes.append(_invalid(f"metadata.annotations[{key[:300]}]", fault))
        size += len(key.encode()) + len(value.encode())
    if size > MAX_ANNOTATIONS:
        message = f"Too long: {size} bytes of keys and values; at most {MAX_ANNOTATIONS} are allowed"
        causes.append(Cause("FieldValueTooLong", message, "metadata.annotations"))
    return [*causes, *_finalizers(meta.get("finalizers")), *_owners(meta.get("ownerReferences"))]


def _names(meta: dict[str, Any], namespaced: bool) -> list[Cause]:
    causes = []
    name, namespace = meta.get("name"), meta.get("namespace")
    if not name:
        causes.append(Cause("FieldValueRequired", "Required value: name or generateName is required", "metadata.name"))
    elif isinstance(name, str) and (fault := name_fault(name, most=253, dots=True)):
        causes.append(Cause("FieldValueInvalid", fault, "metadata.name"))
    if namespaced and not namespace:
        causes.append(Cause("FieldValueRequired", "Required value", "metadata.namespace"))
    if not namespaced and namespace:
        causes.append(Cause("FieldValueForbidden", "not allowed on this type", "metadata.namespace"))
    return causes


def _finalizers(finalizers: Any) -> list[Cause]:
    causes = []
    for at, name in enumerate(finalizers if isinstance(finalizers, list) else []):
        if isinstance(name, str):
            fault = key_fault(name)
            if fault:
                causes.append(_invalid(f"metadata.finalizers[{at}]", fault))
    return causes


def _owners(owners: Any) -> list[Cause]:
    causes = []
    controllers = 0
    for at, owner in enumerate(owners if isinstance(owners, list) else []):
        if not isinstance(owner, dict):
            continue
        path = f"metadata.ownerReferences[{at}]"
        causes += [
            Cause("FieldValueInvalid", 'Invalid value: "": must not be empty', f"{path}.{field}")
            for field in ("apiVersion", "kind", "name", "uid")
            if owner.get(field) == ""
        ]
        controllers += owner.get("controller") is True
    if controllers > 1:
        causes.append(_invalid("metadata.ownerReferences", "only one reference can have controller set to true"))
    return causes


def _strings(value: Any) -> list[tuple[str, str]]:
    return [item for item in value.items() if isinstance(item[1], str)] if isinstance(value, dict) else []


def _invalid(field: str, message: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: {message}", field)
