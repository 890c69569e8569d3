"""The syntax of label keys and values and of annotation keys."""

from __future__ import annotations

import re
from functools import lru_cache

from .names import is_dns1123_subdomain

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


_LONGEST = 253 + 1 + 63
"""Characters of a key; longer ones are not kept in memory."""


def key_fault(key: str) -> str | None:
    """What is wrong with a label or annotation key, in words; None when nothing is."""
    return _key_fault(key if len(key) <= _LONGEST else key[: _LONGEST + 1])


@lru_cache(4096)
def _key_fault(key: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if slash and not is_dns1123_subdomain(prefix):
        return f'the prefix of "{key[:300]}" must be a lower-case DNS name such as example.com'
    if not _NAME.fullmatch(name):
        return (
            f'"{name[:100]}" must be at most 63 letters, digits, "-", "_" or ".", '
            "and begin and end with a letter or digit, such as app or example.com/app"
        )
    return None


def value_fault(value: str) -> str | None:
    """What is wrong with a label value, in words; None when nothing is."""
    return _value_fault(value if len(value) <= _LONGEST else value[: _LONGEST + 1])


@lru_cache(4096)
def _value_fault(value: str) -> str | None:
    if value and not _NAME.fullmatch(value):
        return (
            f'"{value[:100]}" must be empty or at most 63 letters, digits, "-", "_" or ".", '
            "and begin and end with a letter or digit"
        )
    return None
