"""JSON Patch (RFC 6902)."""

from __future__ import annotations

from typing import Any


def json_patch(obj: Any, operations: Any) -> Any:
    """A new value. Raises StatusError BadRequest (malformed), Invalid (does not apply), RequestEntityTooLarge."""
    raise NotImplementedError
