"""YAML as kubectl reads it: one document of JSON values. No tags, no cycles; aliases count for what they expand to.

Plain scalars are read by the rules of YAML 1.1 that kubectl follows (yes/no/on/off are booleans, 0755 is octal), so a
manifest means the same whoever converts it. Keys are always text, as written.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import yaml

from .scalars import integer, number

MAX_DEPTH = 128
MAX_NODES = 100_000
"""Scalars, lists and maps, aliases expanded."""
MAX_CHARACTERS = 4 * 1024 * 1024
"""Of all scalars, aliases expanded."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TRUE = {"true", "True", "TRUE", "y", "Y", "yes", "Yes", "YES", "on", "On", "ON"}
_FALSE = {"false", "False", "FALSE", "n", "N", "no", "No", "NO", "off", "Off", "OFF"}
_NULL = {"", "~", "null", "Null", "NULL"}
_INTEGER = re.compile(r"([-+]?)(?:0b([01_]+)|0x([0-9a-fA-F_]+)|0o?([0-7_]+)|([1-9][0-9_]*)|(0))")
_NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*)?\.?[0-9]+(?:\.)?(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_MERGE = "<<"


def decode_yaml(text: str, duplicates: list[str]) -> Any:
    """The one document; None when there is none. Paths of keys given twice go to `duplicates`. Raises ValueError."""
    try:
        return _Builder(duplicates).build(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:300]) from None


class _Frame:
    """A list or map that is being read."""

    __slots__ = ("anchor", "characters", "key", "merges", "nodes", "path", "value")

    def __init__(self, value: Any, anchor: str | None, path: str, nodes: int, characters: int) -> None:
        self.value = value
        self.anchor = anchor
        self.path = path
        self.key: str | None = None
        self.merges: list[Any] = []
        self.nodes = nodes
        self.characters = characters


class _Builder:
    def __init__(self, duplicates: list[str]) -> None:
        self._duplicates = duplicates
        self._frames: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int, int]] = {}
        """Complete nodes with the nodes and characters in them: an alias within its own anchor is unknown."""
        self._nodes = 0
        self._characters = 0
        self._documents: list[Any] = []

    def build(self, events: Iterator[yaml.Event]) -> Any:
        for event in events:
            if isinstance(event, yaml.NodeEvent):
                self._node(event)
            elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
                self._end()
        documents = [d for d in self._documents if d is not None]
        return documents[0] if documents else None

    def _node(self, event: yaml.NodeEvent) -> None:
        if isinstance(event, yaml.AliasEvent):
            self._alias(str(event.anchor))
            return
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise ValueError(f"{_at(event)}the tag {str(tag)[:100]} is not allowed; write plain values")
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
            return
        frame = self._frames[-1] if self._frames else None
        if frame is not None and isinstance(frame.value, dict) and frame.key is None:
            raise ValueError(f"{_at(event)}a key must be text, not a list or map")
        if len(self._frames) >= MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        path = self._path(frame)
        self._count(1, 0)
        self._frames.append(_Frame(value, event.anchor, path, self._nodes, self._characters))

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        frame = self._frames[-1] if self._frames else None
        self._count(1, len(event.value))
        if frame is not None and isinstance(frame.value, dict) and frame.key is None:
            if event.anchor:
                self._anchors[event.anchor] = (event.value, 1, len(event.value))
            self._key(frame, event.value)
            return
        plain = event.implicit[0] and not event.style
        value = _resolve(event.value) if plain else event.value
        if event.anchor:
            self._anchors[event.anchor] = (value, 1, len(event.value))
        self._add(value)

    def _key(self, frame: _Frame, key: str) -> None:
        if key in frame.value and key != _MERGE:
            self._duplicates.append(f"{frame.path}.{key}" if frame.path else key)
        frame.key = key

    def _alias(self, anchor: str) -> None:
        if anchor not in self._anchors:
            raise ValueError(f"the alias *{anchor[:100]} names no anchor that is complete at that point")
        value, nodes, characters = self._anchors[anchor]
        self._count(nodes, characters)
        frame = self._frames[-1] if self._frames else None
        if frame is not None and isinstance(frame.value, dict) and frame.key is None:
            if not isinstance(value, str):
                raise ValueError("a key must be text")
            self._key(frame, value)
        else:
            self._add(copy.deepcopy(value) if isinstance(value, (dict, list)) else value)

    def _end(self) -> None:
        frame = self._frames.pop()
        for merged in frame.merges:
            for key, value in merged.items():
                frame.value.setdefault(key, value)
        if frame.anchor:
            size = self._nodes - frame.nodes + 1, self._characters - frame.characters
            self._anchors[frame.anchor] = (frame.value, *size)
        self._add(frame.value)

    def _add(self, value: Any) -> None:
        if not self._frames:
            self._documents.append(value)
            if len([d for d in self._documents if d is not None]) > 1:
                raise ValueError("it holds more than one document (---); send one object in each request")
            return
        frame = self._frames[-1]
        if isinstance(frame.value, list):
            frame.value.append(value)
            return
        assert frame.key is not None
        if frame.key == _MERGE:
            parts = value if isinstance(value, list) else [value]
            if not all(isinstance(part, dict) for part in parts):
                raise ValueError("<< must name a map or a list of maps")
            frame.merges.extend(parts)
        else:
            frame.value[frame.key] = value
        frame.key = None

    def _count(self, nodes: int, characters: int) -> None:
        self._nodes += nodes
        self._characters += characters
        if self._nodes > MAX_NODES:
            raise ValueError(f"it holds more than {MAX_NODES} values, aliases expanded; send it as JSON")
        if self._characters > MAX_CHARACTERS:
            raise ValueError(f"it holds more than {MAX_CHARACTERS} characters, aliases expanded")

    def _path(self, frame: _Frame | None) -> str:
        if frame is None:
            return ""
        if isinstance(frame.value, list):
            return f"{frame.path}[{len(frame.value)}]"
        return f"{frame.path}.{frame.key}" if frame.path else str(frame.key)


def _at(event: yaml.Event) -> str:
    mark = event.start_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""


def _resolve(text: str) -> Any:
    """A plain scalar."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if not (text[0].isdigit() or text[0] in "-+."):
        return text
    if match := _INTEGER.fullmatch(text):
        sign, binary, hexadecimal, octal, decimal, _ = match.groups()
        for digits, base in ((binary, 2), (hexadecimal, 16), (octal, 8), (decimal, 10)):
            if digits is not None:
                bare = digits.replace("_", "")
                return integer(sign + bare, base) if bare else text
        return 0
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text} is not a JSON value")
    if _NUMBER.fullmatch(text):
        try:
            return number(text.replace("_", ""))
        except ValueError as error:
            if "out of range" in str(error):
                raise
    return text
