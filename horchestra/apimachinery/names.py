"""Names: what is allowed, and the systemd unit an application becomes."""

from __future__ import annotations

import re
import secrets

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def is_dns1123_label(text: str) -> bool:
    """RFC 1123 label: at most 63 of [a-z0-9-], alphanumeric at both ends."""
    return len(text) <= 63 and _LABEL.fullmatch(text) is not None


def name_fault(text: str, *, most: int, dots: bool = False) -> str:
    """What is wrong with the name of an object, for people; "" when nothing is."""
    if len(text) <= most and (is_dns1123_subdomain(text) if dots else is_dns1123_label(text)):
        return ""
    characters = "a-z, 0-9, '-' and '.'" if dots else "a-z, 0-9 and '-'"
    rule = f"must be {characters}, begin and end with a letter or digit, and have at most {most} characters"
    return f'Invalid value: "{text[:300]}" {rule}'


def is_dns1123_subdomain(text: str) -> bool:
    """RFC 1123 subdomain: labels joined by dots, at most 253 characters."""
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def generated_name(prefix: str) -> str:
    """`prefix` plus five characters that spell no words."""
    return prefix[:58] + "".join(secrets.choice(_ALPHABET) for _ in range(5))


def unit_name(namespace: str, name: str) -> str:
    """The service unit of an application. Names hold no dot, so no two applications share a unit."""
    scoped = name if namespace == "default" else f"{namespace}.{name}"
    return f"horchestra-app-{scoped}.service"
