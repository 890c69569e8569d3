"""Kubernetes' protobuf request bodies as JSON values.

kubectl from 1.32 on sends the core kinds so, without falling back to JSON. An envelope (`k8s\\0` and a message
`Unknown`) holds the kind's own message; `protobuf_fields` says what its fields are called. Answers are always JSON.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from horchestra.apimachinery.errors import StatusError

from .protobuf_fields import MESSAGES, Field, Form

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
MAX_DEPTH = 16
MAX_ITEMS = 10_000
"""In one list or map."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def decode(body: bytes) -> dict[str, Any]:
    """Raises StatusError BadRequest for what is no such message, UnsupportedMediaType for a kind that is not known."""
    if not body.startswith(MAGIC):
        raise StatusError("BadRequest", "the body is not a Kubernetes protobuf message: it does not begin with k8s\\0")
    try:
        envelope = _message("Unknown", body[len(MAGIC) :], 0)
        meta, raw = envelope.get("typeMeta", {}), envelope.get("raw", b"")
        kind = meta.get("kind", "")
        if kind not in MESSAGES:
            raise StatusError(
                "UnsupportedMediaType", f'a body of kind "{kind[:100]}" is not understood as protobuf here; send JSON'
            )
        value = _message(kind, raw, 0)
    except (ValueError, IndexError, OverflowError, TypeError, AttributeError) as error:
        raise StatusError("BadRequest", f"the protobuf body is damaged: {error}") from error
    return {"apiVersion": meta.get("apiVersion", ""), "kind": kind, **value}


def _message(name: str, data: bytes, depth: int) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    fields = MESSAGES[name]
    out: dict[str, Any] = {}
    for number, value in _fields(data):
        field = fields.get(number)
        if field is None:
            continue
        if field.form is Form.MAP:
            entry = dict(_fields(value if isinstance(value, bytes) else b""))
            key = _scalar("string", entry.get(1, b""), depth)
            _room(out.setdefault(field.name, {}))[key] = _scalar(field.type, entry.get(2, b""), depth)
        elif field.form is Form.LIST:
            _room(out.setdefault(field.name, [])).append(_scalar(field.type, value, depth))
        else:
            _set(out, field, _scalar(field.type, value, depth))
    return out


def _room(items: Any) -> Any:
    if len(items) >= MAX_ITEMS:
        raise ValueError(f"it has more than {MAX_ITEMS} items in one list or map")
    return items


def _set(out: dict[str, Any], field: Field, value: Any) -> None:
    # Fields that are not pointers are written even when they are zero; JSON leaves those out.
    if value is None or value == "" or value == {}:
        return
    out[field.name] = value


def _scalar(kind: str, value: int | bytes, depth: int) -> Any:
    if kind == "int":
        number = int(value)
        return number - 2**64 if number >= 2**63 else number
    if kind == "bool":
        return bool(value)
    if not isinstance(value, bytes):
        raise ValueError(f"a {kind} is not written as a number")
    match kind:
        case "string":
            return value.decode()
        case "bytes":
            return base64.b64encode(value).decode()
        case "raw":
            return value
        case "Time":
            return _time(value)
    return _message(kind, value, depth + 1)


def _time(data: bytes) -> str | None:
    parts = dict(_fields(data))
    seconds = _scalar("int", parts.get(1, 0), 0)
    if not seconds:
        return None
    return (_EPOCH + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            number, at = _varint(data, at)
            yield key >> 3, number
        elif wire == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("it ends in the middle of a field")
            yield key >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {wire} is not used by Kubernetes")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return result, at
        if shift > 63:
            raise ValueError("a number is longer than 64 bits")
