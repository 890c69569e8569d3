"""Bytes of a request to JSON values and back, safe with hostile input: bounded in depth, numbers and expansion."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pydantic_core

from .errors import StatusError
from .scalars import integer, number
from .yaml import decode_yaml

MAX_DEPTH = 128
"""Lists and maps within one another."""
MAX_VALUES = 100_000
"""In all lists and maps together: objects have hundreds, and what is done for each adds up."""


@dataclass(frozen=True, slots=True)
class Decoded:
    value: Any
    duplicates: list[str] = field(default_factory=list)
    """Paths of keys that were given twice (the last one counts): `spec.env.PATH`."""


def decode(body: bytes, content_type: str) -> Decoded:
    """JSON or YAML by media type; without one it is JSON. Every map is a dict with text keys. Raises StatusError
    BadRequest, UnsupportedMediaType. A body near the size limit takes a second: decode large ones in a thread."""
    media = content_type.partition(";")[0].strip().lower()
    if media in ("", "application/json") or media.endswith("+json"):
        read: Callable[[str, list[str]], Any] = _decode_json
        name = "JSON"
    elif media in ("application/yaml", "application/x-yaml", "text/yaml") or media.endswith("+yaml"):
        read, name = decode_yaml, "YAML"
    else:
        message = f"the body is of the unknown type {media[:100]}; send application/json or application/yaml"
        raise StatusError("UnsupportedMediaType", message)
    duplicates: list[str] = []
    try:
        value = read(_text(body), duplicates)
        _check_size(value)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise StatusError("BadRequest", f"the body of the request is not valid {name}: {why}") from None
    return Decoded(value, duplicates)


def encode(value: Any) -> bytes:
    """Compact JSON."""
    return pydantic_core.to_json(value)


def _text(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    return text.removeprefix("\ufeff")


class _Repeated(dict[str, Any]):
    """A map in which keys were given twice."""

    keys_twice: list[str]


_CONTAINERS = {dict, list, _Repeated}


def _decode_json(text: str, duplicates: list[str]) -> Any:
    repeated = False

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        value = dict(items)
        if len(value) == len(items):
            return value
        repeated = True
        marked = _Repeated(value)
        marked.keys_twice = [name for name, times in Counter(name for name, _ in items).items() if times > 1]
        return marked

    if not text.strip():
        return None
    value = json.loads(
        text, object_pairs_hook=pairs, parse_float=number, parse_int=integer, parse_constant=_refuse_constant
    )
    if "\\u" in text:
        _check_surrogates(value)
    return _unmarked(value, "", duplicates) if repeated else value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON value")


def _check_surrogates(value: Any) -> None:
    """Half a surrogate pair in an escape is no character and could not be stored."""
    try:
        pydantic_core.to_json(value)
    except ValueError:
        raise ValueError("an escape \\uD800 to \\uDFFF stands alone, it is no character") from None


def _check_size(value: Any) -> None:
    level: list[Any] = [value] if isinstance(value, (dict, list)) else []
    values = 0
    for _ in range(MAX_DEPTH):
        if not level:
            return
        values += sum(map(len, level))
        if values > MAX_VALUES:
            raise ValueError(f"it holds more than {MAX_VALUES} values")
        level = [
            part
            for outer in level
            if outer
            for part in (outer.values() if isinstance(outer, dict) else outer)
            if part.__class__ in _CONTAINERS
        ]
    if level:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")


def _unmarked(value: Any, path: str, duplicates: list[str]) -> Any:
    if isinstance(value, list):
        return [_unmarked(part, f"{path}[{at}]", duplicates) for at, part in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if isinstance(value, _Repeated):
        duplicates.extend(f"{path}.{name}" if path else name for name in value.keys_twice)
    return {k: _unmarked(part, f"{path}.{k}" if path else k, duplicates) for k, part in value.items()}
