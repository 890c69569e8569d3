"""What `image:` may say: `[registry[:port]/]repository[:tag][@digest]`, as the nodes read it.

Grammar: github.com/distribution/reference. A first part that cannot be a host belongs to the repository, on docker.io.
"""

from __future__ import annotations

import re

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY = re.compile(rf"(?:{_LABEL}(?:\.[A-Za-z0-9-]+)*|\[[0-9A-Fa-f:]+\])(?::[0-9]{{1,5}})?")
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_HUB = "docker.io"
_HUB_NAMES = (_HUB, "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com")
_MOST = 255
"""Characters of registry and repository together."""


def fault(text: str) -> str:
    """What is wrong with an image reference, for people; "" when nothing is."""
    why = _fault(text)
    return f"{text[:100]!r} is not an image, as registry/repository:tag or repository@sha256:...: {why}" if why else ""


def _fault(text: str) -> str:
    if not text:
        return "it is empty"
    if "://" in text:
        return "leave out the scheme; begin with the registry's host"
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        return "after '@' comes sha256: and 64 hexadecimal digits in lower case"
    path, slash, last = rest.rpartition("/")
    last, colon, tag = last.partition(":")
    if colon and not _TAG.fullmatch(tag):
        return f"{tag[:140]!r} is not a tag; use at most 128 letters, digits, '_', and further in '.' and '-'"
    registry, repository = _split(path + slash + last)
    if not _REGISTRY.fullmatch(registry):
        return f"{registry[:100]!r} is not a registry, as registry.example or 10.0.0.1:5000"
    if not _REPOSITORY.fullmatch(repository):
        shown = repository.removeprefix("library/")[:100]
        return f"{shown!r} is not a repository; use lower-case letters and digits, with . _ - and / between them"
    if len(registry) + 1 + len(repository) > _MOST:
        return f"the name is longer than {_MOST} characters"
    return ""


def _split(name: str) -> tuple[str, str]:
    """Registry and repository, the hub's short forms written out."""
    first, slash, repository = name.partition("/")
    if not slash or not (first == "localhost" or "." in first or ":" in first or first != first.lower()):
        first, repository = _HUB, name
    registry = _HUB if first.lower() in _HUB_NAMES else first.lower()
    return registry, f"library/{repository}" if registry == _HUB and "/" not in repository else repository
