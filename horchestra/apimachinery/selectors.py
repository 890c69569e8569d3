"""Label and field selectors as clients write them in query parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import StatusError
from .labels import key_fault, value_fault

MAX_LENGTH = 16384


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term of a label selector: = (value in values), != (absent or not in values), exists, !exists, >, <."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "=":
                return value in self.values
            case "!=":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "!exists":
                return value is None
        number, bound = _integer(value), int(next(iter(self.values)))
        if number is None:
            return False
        return number > bound if self.operator == ">" else number < bound


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """`app=web,tier in (a,b),!canary`; the empty text matches everything."""

    requirements: tuple[Requirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> LabelSelector:
        """Raises StatusError BadRequest."""
        if len(text) > MAX_LENGTH:
            raise StatusError("BadRequest", f"label selector is longer than {MAX_LENGTH} characters")
        return cls(tuple(_requirement(term) for term in _terms(text)))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)

    def equalities(self) -> list[tuple[str, str]]:
        """Labels that every match carries: the terms an index can answer."""
        return [(r.key, next(iter(r.values))) for r in self.requirements if r.operator == "=" and len(r.values) == 1]


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """`metadata.name=web,status.phase!=Running` over fields that the kind declares."""

    terms: tuple[tuple[tuple[str, ...], bool, str], ...] = ()
    """(path, equal, value)."""

    @classmethod
    def parse(cls, text: str, allowed: Mapping[str, str]) -> FieldSelector:
        """`allowed`: selector name to dotted JSON path; metadata.name and metadata.namespace always are.
        Raises StatusError BadRequest."""
        if len(text) > MAX_LENGTH:
            raise StatusError("BadRequest", f"field selector is longer than {MAX_LENGTH} characters")
        paths = {"metadata.name": "metadata.name", "metadata.namespace": "metadata.namespace", **allowed}
        terms = []
        for term in re.split(r"(?<!\\),", text):
            if not term:
                continue
            match = re.fullmatch(r"([^=!\\]+)(==|=|!=)((?:[^\\=]|\\[\\=,])*)", term, re.DOTALL)
            if match is None:
                message = f'invalid field selector "{term[:200]}"; write metadata.name=web or status.phase!=Running'
                raise StatusError("BadRequest", message)
            name, operator, value = match[1].strip(), match[2], re.sub(r"\\(.)", r"\1", match[3])
            if name not in paths:
                message = f'field label not supported: "{name[:200]}"; supported are {", ".join(sorted(paths))}'
                raise StatusError("BadRequest", message)
            terms.append((tuple(paths[name].split(".")), operator != "!=", value))
        return cls(tuple(terms))

    def matches(self, obj: Mapping[str, Any]) -> bool:
        return all((_text(obj, path) == value) is equal for path, equal, value in self.terms)

    def exactly(self, path: str) -> str | None:
        """The value that a term demands of this path, if one does: `metadata.name` turns a list into a get."""
        wanted = tuple(path.split("."))
        return next((value for p, equal, value in self.terms if equal and p == wanted), None)


def _text(obj: Any, path: tuple[str, ...]) -> str:
    for step in path:
        obj = obj.get(step) if isinstance(obj, Mapping) else None
    if obj is None:
        return ""
    if isinstance(obj, bool):
        return "true" if obj else "false"
    return str(obj)


_TERM = re.compile(
    r"\s*(?:"
    r"!\s*(?P<absent>[^\s,=!()<>]+)"
    r"|(?P<set>[^\s,=!()<>]+)\s+(?P<not>not)?in\s*\((?P<values>[^()]*)\)"
    r"|(?P<key>[^\s,=!()<>]+)\s*(?P<op>==|=|!=|>|<)\s*(?P<value>[^\s,=!()<>]*)"
    r"|(?P<present>[^\s,=!()<>]+)"
    r")\s*(?:,|$)"
)


def _terms(text: str) -> list[re.Match[str]]:
    terms: list[re.Match[str]] = []
    at = 0
    while text[at:].strip():
        match = _TERM.match(text, at)
        if match is None:
            message = f'unable to parse label selector "{text[:200]}" at "{text[at : at + 50].strip()}"'
            raise StatusError("BadRequest", message + "; write it as app=web,tier in (a,b),!canary")
        terms.append(match)
        at = match.end()
    if terms and text.rstrip().endswith(","):
        raise StatusError("BadRequest", f'unable to parse label selector "{text[:200]}": it ends with a comma')
    return terms


def _requirement(match: re.Match[str]) -> Requirement:
    if match["absent"]:
        requirement = Requirement(match["absent"], "!exists")
    elif match["present"]:
        requirement = Requirement(match["present"], "exists")
    elif match["set"]:
        values = frozenset(v.strip() for v in match["values"].split(","))
        requirement = Requirement(match["set"], "!=" if match["not"] else "=", values)
    else:
        operator = "=" if match["op"] == "==" else match["op"]
        requirement = Requirement(match["key"], operator, frozenset([match["value"]]))
    fault = key_fault(requirement.key)
    if fault is None and requirement.operator in "<>":
        if _integer(next(iter(requirement.values))) is None:
            fault = "for < and > the value must be an integer"
    elif fault is None:
        fault = next((f for f in map(value_fault, requirement.values) if f), None)
    if fault:
        raise StatusError("BadRequest", f'unable to parse label selector at "{match[0].strip()[:200]}": {fault}')
    return requirement


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]{1,18}", text) else None
