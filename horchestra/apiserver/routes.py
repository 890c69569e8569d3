"""From a URL path to what it names."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from horchestra.apimachinery.errors import StatusError

NAMESPACE_SUBRESOURCES = frozenset(("status", "finalize"))


class Route(NamedTuple):
    """`plural` is "" for what is not a resource; then `path` alone counts (no trailing slash)."""

    path: str
    group: str = ""
    version: str = ""
    plural: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse(raw: bytes) -> Route:
    """Reads `/api/VERSION/...` and `/apis/GROUP/VERSION/...` as Kubernetes' request info does.

    Raises StatusError BadRequest for a path whose percent-encoding hides a slash or is not UTF-8: what is authorised
    must be what is meant.
    """
    parts = (_decoded(raw) if b"%" in raw else raw.decode("latin-1")).split("/")[1:]
    if parts and parts[-1] == "":
        parts.pop()
    path = "/" + "/".join(parts)
    if len(parts) > 2 and parts[0] == "api":
        return _resource(path, "", parts[1], parts[2:])
    if len(parts) > 3 and parts[0] == "apis":
        return _resource(path, parts[1], parts[2], parts[3:])
    return Route(path)


def _decoded(raw: bytes) -> str:
    if b"%2f" in raw.lower():
        raise StatusError("BadRequest", "the path contains an encoded slash (%2F); no name has one")
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise StatusError("BadRequest", "the path is not UTF-8") from None
    if not text.isprintable():
        raise StatusError("BadRequest", "the path contains a control character")
    return text


def _resource(path: str, group: str, version: str, parts: list[str]) -> Route:
    if "" in parts:
        return Route(path)
    if parts[0] == "namespaces" and len(parts) > 1:
        if len(parts) == 2:
            return Route(path, group, version, "namespaces", "", parts[1])
        if len(parts) == 3 and parts[2] in NAMESPACE_SUBRESOURCES:
            return Route(path, group, version, "namespaces", "", parts[1], parts[2])
        return _named(path, group, version, parts[1], parts[2:])
    return _named(path, group, version, "", parts)


def _named(path: str, group: str, version: str, namespace: str, parts: list[str]) -> Route:
    name = parts[1] if len(parts) > 1 else ""
    return Route(path, group, version, parts[0], namespace, name, "/".join(parts[2:]))
