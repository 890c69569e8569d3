"""Numbers as JSON of Kubernetes holds them."""

from __future__ import annotations

import math

_MAX_INTEGER = 2**63 - 1
_MIN_INTEGER = -(2**63)


def integer(text: str, base: int = 10) -> int:
    """Raises ValueError for what does not fit 64 bits."""
    if len(text) > 70:
        raise ValueError(f"the number {text[:40]}... does not fit 64 bits")
    value = int(text, base)
    if not _MIN_INTEGER <= value <= _MAX_INTEGER:
        raise ValueError(f"the number {text} does not fit 64 bits")
    return value


def number(text: str) -> float:
    """Raises ValueError for what is not finite."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is out of range")
    return value
