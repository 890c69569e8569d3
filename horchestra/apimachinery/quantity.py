"""Kubernetes quantities (`100m`, `1Gi`, `1.5`, `2e3`) as exact numbers."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


@lru_cache(4096)  # admission adds up every application of a node, and few amounts are distinct
def parse(text: str | int | float) -> Decimal:
    """Raises ValueError with a message for people."""
    match = _QUANTITY.fullmatch(str(text)) if len(str(text)) <= 64 else None
    if match is None:
        raise ValueError(f"{str(text)[:64]!r} is not a quantity; write it as 500m, 2, 64Mi or 1Gi")
    number, exponent, suffix = match.groups()
    value = Decimal(number)
    if exponent:
        return value * Decimal(f"1{exponent}")
    if suffix in _BINARY:
        return value * _BINARY[suffix]
    return value.scaleb(_DECIMAL[suffix]) if suffix else value


def millicores(text: str | int | float) -> int:
    """CPU in thousandths, rounded up as Kubernetes does."""
    return int((parse(text) * 1000).to_integral_value(rounding="ROUND_CEILING"))


def byte_count(text: str | int | float) -> int:
    """Bytes, rounded up."""
    return int(parse(text).to_integral_value(rounding="ROUND_CEILING"))
