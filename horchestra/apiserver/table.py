"""Tables: what `kubectl get` prints, made by the server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from horchestra.apimachinery import codec
from horchestra.apimachinery.errors import StatusError
from horchestra.apimachinery.registry import Column, Resource
from horchestra.storage.watch import Entry

INCLUDE = frozenset(("Metadata", "Object", "None"))
_AGE_DESCRIPTION = "Time since the object was created"


def include_object(text: str) -> str:
    """The `includeObject` parameter. Raises StatusError BadRequest."""
    if text and text not in INCLUDE:
        raise StatusError("BadRequest", f"includeObject={text!r}: must be Metadata, Object or None")
    return text or "Metadata"


def head(resource: Resource) -> bytes:
    """`{"kind":"Table",...` up to and without `metadata`."""
    columns = [
        _definition("Name", "string", "name", "Name must be unique within a namespace", 0),
        *(_definition(c.name, _type(c), c.format, c.description, int(c.wide)) for c in _ordered(resource)[0]),
        _definition("Age", "string", "", _AGE_DESCRIPTION, 0),
        *(_definition(c.name, _type(c), c.format, c.description, int(c.wide)) for c in _ordered(resource)[1]),
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
    parts = entry.cache.get(key)
    if parts is None:
        parts = entry.cache[key] = _row(resource, entry, include)
    before, created, after = parts
    return b"%b%b%b" % (before, codec.encode(age(created, now)), after)


def _row(resource: Resource, entry: Entry, include: str) -> tuple[bytes, str | None, bytes]:
    obj = entry.obj
    narrow, wide = _ordered(resource)
    before = codec.encode([entry.name, *(_cell(c, obj) for c in narrow)])[:-1] + b","
    after = codec.encode([_cell(c, obj) for c in wide])[1:] if wide else b"]"
    shown = b"null"
    if include == "Object":
        shown = entry.body
    elif include == "Metadata":
        shown = partial(obj)
    comma = b"," if wide else b""
    created = obj["metadata"].get("creationTimestamp")
    return b'{"cells":' + before, created, comma + after + b',"object":' + shown + b"}"


def partial(obj: dict[str, Any]) -> bytes:
    """The object's metadata alone."""
    return codec.encode({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]})


def _ordered(resource: Resource) -> tuple[list[Column], list[Column]]:
    """Columns before and after AGE: the wide ones follow it, as in Kubernetes."""
    return [c for c in resource.columns if not c.wide], [c for c in resource.columns if c.wide]


def _type(column: Column) -> str:
    return "string" if column.type == "date" else column.type


def _definition(name: str, kind: str, form: str, description: str, priority: int) -> dict[str, Any]:
    return {"name": name, "type": kind, "format": form, "description": description, "priority": priority}


def _cell(column: Column, obj: dict[str, Any]) -> Any:
    try:
        value = column.cell(obj)
    except (KeyError, IndexError, TypeError, AttributeError):
        return None  # a column of something the object does not have yet
    return age(value, datetime.now(UTC)) if column.type == "date" else value


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
