"""What pydantic found wrong, said as Kubernetes says it."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .errors import MAX_CAUSES, Cause

_CONSIDERED = 2 * MAX_CAUSES
"""Faults looked at; comparing them with one another takes the square of their number."""
_TYPES = {
    "string": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "dict": "a map",
    "model": "a map",
    "decimal": "a number",
}


def field_causes(error: ValidationError, obj: Any, *, secret: bool = False) -> list[Cause]:
    """One cause per bad field, with its path in `obj`; of a secret object no values are repeated."""
    found = [_Fault(details, obj, secret) for details in error.errors(include_url=False)[:_CONSIDERED]]
    causes: dict[tuple[str, str], Cause] = {}
    for fault in found:
        if fault.union is None or not _elsewhere(fault, found):
            reason, message = fault.words()
            causes.setdefault((fault.path, message), Cause(reason, message, fault.path))
    return _joined(list(causes.values()))


class _Fault:
    """One of pydantic's errors, placed in the object."""

    def __init__(self, details: ErrorDetails, obj: Any, secret: bool) -> None:
        self.details = details
        self.shown = "***" if secret else _shown(details["input"])
        self.type = details["type"]
        self.steps: list[str | int] = []
        self.union: int | None = None
        """Depth of the union whose branch failed; pydantic names the branch in the location."""
        at = obj
        loc = details["loc"]
        for i, step in enumerate(loc):
            last = i == len(loc) - 1
            if isinstance(step, int) and isinstance(at, list) and step < len(at):
                at = at[step]
            elif isinstance(at, dict) and step in at:
                at = at[str(step)]
            elif step == "[key]":
                continue
            elif not (last and self.type == "missing"):
                self.union = len(self.steps) if self.union is None else self.union
                continue
            self.steps.append(step)

    @property
    def path(self) -> str:
        text = ""
        for step in self.steps:
            if isinstance(step, int):
                text += f"[{step}]"
            elif "." in step or "/" in step or not step:
                text += f"[{step[:300]}]"
            else:
                text += f".{step[:300]}" if text else step[:300]
        return text

    def words(self) -> tuple[str, str]:
        """(reason, message)."""
        context: dict[str, Any] = self.details.get("ctx") or {}
        if self.type == "missing":
            return "FieldValueRequired", "Required value"
        shown = self.shown
        if self.type in ("literal_error", "enum"):
            allowed = str(context.get("expected", "")).replace(" or ", ", ").replace("'", '"')
            return "FieldValueNotSupported", f"Unsupported value: {shown}: supported values: {allowed}"
        if self.type in ("string_too_long", "too_long"):
            return "FieldValueTooLong", f"Too long: may not be longer than {context.get('max_length')}"
        if self.type.endswith(("_type", "_parsing", "_from_float")):
            wanted = _TYPES.get(self.type.split("_")[0], self.type.split("_")[0])
            return "FieldValueTypeInvalid", f"Invalid value: {shown}: must be {wanted}"
        return "FieldValueInvalid", f"Invalid value: {shown}: {_rule(self.type, context, self.details['msg'])}"


def _rule(type: str, context: dict[str, Any], message: str) -> str:
    match type:
        case "greater_than_equal":
            return f"must be greater than or equal to {context['ge']}"
        case "less_than_equal":
            return f"must be less than or equal to {context['le']}"
        case "greater_than":
            return f"must be greater than {context['gt']}"
        case "less_than":
            return f"must be less than {context['lt']}"
        case "string_too_short" | "too_short":
            return f"must have at least {context['min_length']}"
        case "string_pattern_mismatch":
            return f"must match {context['pattern']}"
        case "value_error":
            return str(context.get("error", message))
    return message[:1].lower() + message[1:]


def _shown(value: Any) -> str:
    """The bad value, short enough for a message."""
    if isinstance(value, dict):
        return '"map"'
    if isinstance(value, list):
        return '"list"'
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 100 else text[:97] + "..."


def _elsewhere(fault: _Fault, found: list[_Fault]) -> bool:
    """True when another branch of the same union took the value's type and failed deeper: that is what was meant."""
    depth = fault.union
    if depth is None or len(fault.steps) > depth or not fault.type.endswith("_type"):
        return False
    prefix = fault.steps[:depth]
    return any(
        other is not fault
        and other.union == depth
        and other.steps[:depth] == prefix
        and (len(other.steps) > depth or not other.type.endswith("_type"))
        for other in found
    )


def _joined(causes: list[Cause]) -> list[Cause]:
    """Type faults of one field, from the branches of a union, as one: `must be a map or a list`."""
    by_field: dict[str, Cause] = {}
    out: list[Cause] = []
    for cause in causes:
        first = by_field.get(cause.field)
        if first is None or cause.reason != "FieldValueTypeInvalid" or first.reason != cause.reason:
            by_field.setdefault(cause.field, cause)
            out.append(cause)
            continue
        merged = Cause(first.reason, f"{first.message} or {cause.message.rpartition('must be ')[2]}", first.field)
        out[out.index(first)] = by_field[cause.field] = merged
    return out
