"""Limits for what a node may make the controller store."""

from __future__ import annotations

from typing import Any

MESSAGE_BYTES = 1024
MAX_ITEMS = 256
MAX_WHOLE = 2**53 - 1
"""Numbers beyond it do not survive every reader of JSON."""


def cut(text: str, limit: int = MESSAGE_BYTES) -> str:
    """At most `limit` bytes of UTF-8, marked where it was cut; control characters but line breaks are shown as such."""
    clean = text[: limit + 1]
    if not clean.isprintable():
        clean = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in clean)
    encoded = clean.encode(errors="replace")
    if len(encoded) <= limit:
        return clean
    return encoded[: limit - 3].decode(errors="ignore") + "\N{HORIZONTAL ELLIPSIS}"


def cut_all(value: Any) -> Any:
    """The same for every string in a JSON value, at most 256 entries in any list or map, numbers that all can read."""
    if isinstance(value, int) and not isinstance(value, bool):
        return max(min(value, MAX_WHOLE), -MAX_WHOLE)
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, list):
        return [cut_all(v) for v in value[:MAX_ITEMS]]
    if isinstance(value, dict):
        return {cut(k, 253): cut_all(v) for k, v in list(value.items())[:MAX_ITEMS]}
    return value
