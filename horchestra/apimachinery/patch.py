"""Patches as values: object and patch in, new object out; neither is changed. JSON Patch is in storage/patch.py."""

from __future__ import annotations

import copy
from typing import Any

from .errors import StatusError

_MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "ports": "containerPort",
    "secrets": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists of the core kinds whose items have an identity (`patchMergeKey` in Kubernetes' API types); other lists are
replaced whole."""
_UNITED = {"finalizers"}
"""Lists of plain values that are united (`patchStrategy: merge`)."""
_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


def merge(obj: Any, patch: Any) -> Any:
    """RFC 7386: maps are merged, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    out = dict(obj) if isinstance(obj, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge(out.get(key), value)
    return out


def strategic(obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Strategic merge patch for the core kinds: like merge(), but lists with a merge key are merged item by item, and
    the directives $patch, $retainKeys, $deleteFromPrimitiveList are followed; order directives are not needed.
    Raises StatusError BadRequest."""
    return _map(obj, patch) or {}


def _map(obj: Any, patch: dict[str, Any]) -> dict[str, Any] | None:
    """None: deleted."""
    directive = patch.get("$patch", "merge")
    if directive == "delete":
        return None
    if directive not in ("merge", "replace"):
        raise StatusError("BadRequest", f'unknown $patch: {str(directive)[:100]}; it is "replace", "delete" or "merge"')
    out = dict(obj) if isinstance(obj, dict) and directive == "merge" else {}
    for key, value in patch.items():
        if key.startswith(_DELETE_FROM):
            _delete_from(out, key.removeprefix(_DELETE_FROM), value)
        elif key in ("$patch", "$retainKeys") or key.startswith(_ORDER):
            continue
        else:
            _set(out, key, value)
    if "$retainKeys" in patch:
        retained = _list(patch["$retainKeys"], "$retainKeys")
        out = {k: v for k, v in out.items() if k in retained}
    return out


def _set(out: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        out.pop(key, None)
    elif isinstance(value, dict):
        merged = _map(out.get(key), value)
        if merged is None:
            out.pop(key, None)
        else:
            out[key] = merged
    elif isinstance(value, list):
        out[key] = _items(key, out.get(key), value)
    else:
        out[key] = value


def _items(field: str, old: Any, patch: list[Any]) -> list[Any]:
    current = list(old) if isinstance(old, list) else []
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [copy.deepcopy(i) for i in patch if not (isinstance(i, dict) and i.get("$patch") == "replace")]
    if field in _UNITED:
        return current + [item for item in patch if item not in current]
    identity = _MERGE_KEYS.get(field)
    maps = all(isinstance(item, dict) for item in [*current, *patch])
    if identity is None or not maps or not all(identity in item for item in patch):
        return [copy.deepcopy(item) for item in patch]
    at = {repr(item.get(identity)): i for i, item in enumerate(current)}
    for item in patch:
        index = at.get(repr(item[identity]))
        merged = _map(current[index] if index is not None else None, item)
        if index is not None:
            current[index] = merged
        elif merged is not None:
            at[repr(item[identity])] = len(current)
            current.append(merged)
    return [item for item in current if item is not None]


def _delete_from(out: dict[str, Any], field: str, values: Any) -> None:
    unwanted = _list(values, _DELETE_FROM + field)
    if isinstance(out.get(field), list):
        out[field] = [item for item in out[field] if item not in unwanted]


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise StatusError("BadRequest", f"{what[:100]} must be a list")
    return value
