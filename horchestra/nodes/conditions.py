"""Conditions as lists of JSON: set one, keep the others, remember when its status last changed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any


def timestamp(moment: datetime | None = None) -> str:
    """RFC 3339, UTC, whole seconds."""
    return (moment or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(
    kind: str, status: str, reason: str, message: str = "", *, generation: int | None = None
) -> dict[str, Any]:
    """`status` is True, False or Unknown."""
    found: dict[str, Any] = {"type": kind, "status": status, "reason": reason, "message": message}
    if generation is not None:
        found["observedGeneration"] = generation
    return found


def merge(old: Iterable[dict[str, Any]], new: Iterable[dict[str, Any]], now: str | None = None) -> list[dict[str, Any]]:
    """`old` with each of `new` in place of its type; lastTransitionTime moves only when status does."""
    merged = {c["type"]: c for c in old}
    for fresh in new:
        before = merged.get(fresh["type"])
        kept = before.get("lastTransitionTime") if before and before["status"] == fresh["status"] else None
        merged[fresh["type"]] = {**fresh, "lastTransitionTime": kept or now or timestamp()}
    return list(merged.values())


def find(obj: dict[str, Any], kind: str) -> dict[str, Any] | None:
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == kind), None)
