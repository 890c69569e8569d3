"""Bytes of a request to JSON values and back, safe with hostile input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pydantic_core


@dataclass(frozen=True, slots=True)
class Decoded:
    value: Any
    duplicates: list[str] = field(default_factory=list)
    """Paths of keys that were given twice (the last one counts): `spec.env.PATH`."""


def decode(body: bytes, content_type: str) -> Decoded:
    """JSON or YAML by media type. Raises StatusError BadRequest, UnsupportedMediaType."""
    raise NotImplementedError


def encode(value: Any) -> bytes:
    """Compact JSON."""
    return pydantic_core.to_json(value)
