"""Patches as values: an object and a patch in, a new object out."""

from __future__ import annotations

from typing import Any


def merge(obj: Any, patch: Any) -> Any:
    """RFC 7386."""
    raise NotImplementedError


def strategic(obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Strategic merge patch of the core kinds. Raises StatusError BadRequest."""
    raise NotImplementedError
