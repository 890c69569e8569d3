"""Tables: what `kubectl get` prints, made by the server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from horchestra.apimachinery import codec
from horchestra.apimachinery.errors import StatusError
from horchestra.apimachinery.registry import Column, Resource
from horchestra.storage.watch import Entry

INCLUDE = frozenset(("Metadata", "Object", "None"))
_NAME = Column(
    "Name", lambda o: o["metadata"]["name"], format="name", description="Name must be unique within a namespace"
)
_AGE = Column(
    "Age",
    lambda o: o["metadata"].get("creationTimestamp"),
    type="date",
    description="Time since the object was created",
)


@dataclass(frozen=True, slots=True)
class Date:
    """The place of a cell that says how long ago something was."""

    time: str | None


def include_object(text: str) -> str:
    """The `includeObject` parameter. Raises StatusError BadRequest."""
    if text and text not in INCLUDE:
        raise StatusError("BadRequest", f"includeObject={text!r}: must be Metadata, Object or None")
    return text or "Metadata"


def head(resource: Resource) -> bytes:
    """`{"kind":"Table",...` up to and without `metadata`."""
    columns = [
        {
            "name": c.name,
            "type": "string" if c.type == "date" else c.type,
            "format": c.format,
            "description": c.description,
            "priority": int(c.wide),
        }
        for c in columns_of(resource)
    ]
    return b'{"kind":"Table","apiVersion":"meta.k8s.io/v1","columnDefinitions":' + codec.encode(columns)


def table(resource: Resource, metadata: bytes, rows: list[bytes]) -> list[bytes]:
    """The pieces of a whole Table."""
    pieces = [head(resource) + b',"metadata":' + metadata + b',"rows":[']
    for position, encoded in enumerate(rows):
        pieces.append(b"," + encoded if position else encoded)
    pieces.append(b"]}")
    return pieces


def row(resource: Resource, entry: Entry, include: str, now: datetime) -> bytes:
    """One row. What does not change with time is kept with the entry."""
    key = f"row:{include}"
    parts: list[bytes | Date] | None = entry.cache.get(key)
    if parts is None:
        parts = entry.cache[key] = _row(resource, entry, include)
    return b"".join([codec.encode(age(p.time, now)) if isinstance(p, Date) else p for p in parts])


def _row(resource: Resource, entry: Entry, include: str) -> list[bytes | Date]:
    obj = entry.obj
    parts: list[bytes | Date] = []
    held = b'{"cells":['
    for position, column in enumerate(columns_of(resource)):
        held += b"," if position else b""
        cell = _cell(column, obj)
        if column.type == "date":
            parts += [held, Date(cell)]
            held = b""
        else:
            held += codec.encode(cell)
    shown = b"null"
    if include == "Object":
        shown = entry.body
    elif include == "Metadata":
        shown = partial(obj)
    return [*parts, held + b'],"object":' + shown + b"}"]


def partial(obj: dict[str, Any]) -> bytes:
    """The object's metadata alone."""
    return codec.encode({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]})


@lru_cache(maxsize=256)
def columns_of(resource: Resource) -> tuple[Column, ...]:
    """All columns in order: the wide ones follow AGE, as in Kubernetes."""
    own = resource.columns
    if resource.all_columns:
        return own
    return (_NAME, *(c for c in own if not c.wide), _AGE, *(c for c in own if c.wide))


def _cell(column: Column, obj: dict[str, Any]) -> Any:
    try:
        return column.cell(obj)
    except (KeyError, IndexError, TypeError, AttributeError):
        return None  # a column of something the object does not have yet


def age(timestamp: str | None, now: datetime) -> str:
    """Time since an RFC 3339 timestamp, in the two coarsest units that matter: 45s, 3m20s, 5h, 12d, 2y30d."""
    if not timestamp:
        return "<unknown>"
    try:
        seconds = int((now - datetime.fromisoformat(timestamp)).total_seconds())
    except (ValueError, TypeError):
        return "<unknown>"
    if seconds < 0:
        return "0s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    if days < 2920:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"
