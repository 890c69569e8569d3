"""A kind's pydantic class as structural OpenAPI v3, and what is driven by it: defaults, pruning, validation, documents."""

from __future__ import annotations

from typing import Any

from .meta import APIObject
from .registry import Registry


def structural(cls: type[APIObject]) -> dict[str, Any]:
    """OpenAPI v3 schema of one kind, self-contained."""
    raise NotImplementedError


def openapi(registry: Registry) -> dict[tuple[str, str], dict[str, Any]]:
    """(group, version) -> the OpenAPI v3 document."""
    raise NotImplementedError


def apply_defaults(cls: type[APIObject], obj: dict[str, Any]) -> None:
    """Fills defaults in place."""
    raise NotImplementedError


def prune(cls: type[APIObject], obj: dict[str, Any]) -> list[str]:
    """Removes unknown fields in place; their paths."""
    raise NotImplementedError


def validate(cls: type[APIObject], obj: dict[str, Any]) -> APIObject:
    """The typed object. Raises StatusError Invalid with every field path."""
    raise NotImplementedError
