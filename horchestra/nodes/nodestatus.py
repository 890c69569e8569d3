"""What a node reports of itself, made safe to store. Pure; the agent's word is hostile until it has passed here."""

from __future__ import annotations

from typing import Any

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from horchestra.apimachinery.desired import VolumeReport
from horchestra.kinds.node import NodeStatus

from .bounds import cut, cut_all
from .conditions import merge

CONTROLLERS_CONDITIONS = frozenset({"Ready", "Adopted", "ConflictPaused", "DuplicateNode", "Orphaned"})
"""Written by the controller alone."""
MAX_CONDITIONS = 32
MAX_VOLUMES = 4096
MAX_STATUS_BYTES, MAX_VOLUMES_BYTES = 256 << 10, 4 << 20
_VOLUMES = TypeAdapter(list[VolumeReport])


class BadReport(ValueError):
    """A report that cannot be used; the message says why."""


def first_fault(error: ValidationError) -> str:
    """Where and what, in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]


def reported(status: dict[str, Any], node_json: bytes) -> dict[str, Any]:
    """The stored status with what the node says laid over it. Raises BadReport."""
    if not node_json:
        return dict(status)
    if len(node_json) > MAX_STATUS_BYTES:
        raise BadReport(f"node status of {len(node_json)} bytes; at most {MAX_STATUS_BYTES} are taken")
    try:
        said = NodeStatus.model_validate_json(node_json).model_dump(exclude_unset=True, exclude_none=True)
    except ValidationError as error:
        raise BadReport(f"node status: {first_fault(error)}") from error
    taken = cut_all({k: said[k] for k in ("capacity", "allocatable", "addresses", "nodeInfo") if k in said})
    if "nodeInfo" in taken:
        # Which machine and boot it is was said, and judged, in its hello.
        known = {k: v for k, v in taken["nodeInfo"].items() if k not in ("machineID", "bootID")}
        taken["nodeInfo"] = {**(status.get("nodeInfo") or {}), **known}
    conditions = [
        cut_all({k: c[k] for k in ("type", "status", "reason", "message") if k in c})
        for c in said.get("conditions", [])[:MAX_CONDITIONS]
        if c["type"] not in CONTROLLERS_CONDITIONS and c["status"] in ("True", "False", "Unknown")
    ]
    kept = [c for c in status.get("conditions") or [] if c["type"] in CONTROLLERS_CONDITIONS]
    before = {c["type"]: c for c in status.get("conditions") or []}
    fresh = merge([before[c["type"]] for c in conditions if c["type"] in before], conditions)
    return {**status, **taken, "conditions": [*kept, *fresh]}


def volumes(stored: list[dict[str, Any]], volumes_json: bytes) -> list[dict[str, Any]]:
    """The volume directories of a node. Use that has changed by less than a tenth keeps its stored figure: it is
    measured all the time and worth no write. Raises BadReport."""
    if len(volumes_json) > MAX_VOLUMES_BYTES:
        raise BadReport(f"list of volumes of {len(volumes_json)} bytes; at most {MAX_VOLUMES_BYTES} are taken")
    try:
        said = _VOLUMES.validate_json(volumes_json)[:MAX_VOLUMES]
    except (ValidationError, pydantic_core.PydanticSerializationError) as error:
        raise BadReport("the list of volumes cannot be read") from error
    before = {v["uid"]: v.get("bytes") for v in stored}
    found = []
    for volume in sorted(said, key=lambda v: v.uid):
        one = volume.model_dump()
        old = before.get(volume.uid)
        if old and (volume.bytes is None or abs(volume.bytes - old) * 10 < old):
            one["bytes"] = old
        found.append({k: cut(v, 4096) if isinstance(v, str) else cut_all(v) for k, v in one.items()})
    return found
