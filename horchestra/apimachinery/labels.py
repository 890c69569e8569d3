"""The syntax of label keys and values and of annotation keys."""

from __future__ import annotations

import re
from functools import lru_cache

from .names import is_dns1123_subdomain

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@lru_cache(4096)
def key_fault(key: str) -> str | None:
    """What is wrong with a label or annotation key, in words; None when nothing is."""
    prefix, slash, name = key.rpartition("/")
    if slash and not is_dns1123_subdomain(prefix):
        return f'the prefix of "{key[:300]}" must be a lower-case DNS name such as example.com'
    if not _NAME.fullmatch(name):
        return (
            f'"{name[:100]}" must be at most 63 letters, digits, "-", "_" or ".", '
            "and begin and end with a letter or digit, such as app or example.com/app"
        )
    return None


@lru_cache(4096)
def value_fault(value: str) -> str | None:
    """What is wrong with a label value, in words; None when nothing is."""
    if value and not _NAME.fullmatch(value):
        return (
            f'"{value[:100]}" must be empty or at most 63 letters, digits, "-", "_" or ".", '
            "and begin and end with a letter or digit"
        )
    return None
