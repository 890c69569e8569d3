"""In which shape an answer is wanted: the object, a Table of it, or its metadata alone."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

GROUP = "meta.k8s.io"
_LONGEST = 1024
"""Characters of an Accept header that count; more are not kept in memory."""


class Shape(StrEnum):
    OBJECT = "Object"
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"


@lru_cache(maxsize=1024)
def media_types(accept: str) -> tuple[dict[str, str], ...]:
    """The media ranges of an Accept header, best first; each with its parameters and its name under ""."""
    ranges = []
    for position, text in enumerate(accept.split(",")[:32]):
        name, *parameters = (part.strip() for part in text.split(";"))
        pairs = (p.partition("=") for p in parameters)
        fields = {"": name.lower(), **{key.strip().lower(): value.strip().strip('"') for key, _, value in pairs}}
        ranges.append((-_quality(fields.pop("q", "1")), position, fields))
    return tuple(fields for _, _, fields in sorted(ranges, key=lambda r: r[:2]))


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def shape(accept: str) -> Shape:
    """JSON is given whatever is asked for; a type with `as=` that is not known is passed over."""
    return _shape(accept[:_LONGEST])


@lru_cache(maxsize=1024)
def _shape(accept: str) -> Shape:
    for fields in media_types(accept):
        if fields[""] not in ("application/json", "application/*", "*/*"):
            continue
        asked = fields.get("as", "")
        if not asked:
            return Shape.OBJECT
        if fields.get("g") != GROUP or fields.get("v") not in ("v1", "v1beta1"):
            continue
        if asked == "Table":
            return Shape.TABLE
        if asked in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return Shape.METADATA
    return Shape.OBJECT


def discovery_version(accept: str) -> str:
    """`v2` or `v2beta1` for aggregated discovery, "" for the legacy lists."""
    return _discovery_version(accept[:_LONGEST])


@lru_cache(maxsize=1024)
def _discovery_version(accept: str) -> str:
    for fields in media_types(accept):
        if fields[""] != "application/json":
            continue
        if fields.get("as") == "APIGroupDiscoveryList" and fields.get("g") == "apidiscovery.k8s.io":
            if fields.get("v") in ("v2", "v2beta1"):
                return fields["v"]
        elif "as" not in fields:
            return ""
    return ""
