"""What goes wrong, as Kubernetes says it: a reason, an HTTP code, a message and one cause per bad field."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CODES = {
    "BadRequest": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "MethodNotAllowed": 405,
    "NotAcceptable": 406,
    "AlreadyExists": 409,
    "Conflict": 409,
    "Gone": 410,
    "Expired": 410,
    "RequestEntityTooLarge": 413,
    "UnsupportedMediaType": 415,
    "Invalid": 422,
    "TooManyRequests": 429,
    "InternalError": 500,
    "NotImplemented": 501,
    "ServiceUnavailable": 503,
    "Timeout": 504,
}


MAX_CAUSES = 100
MAX_MESSAGE = 16 * 1024
"""Characters of a Status' message; it may repeat what a client sent."""
_MAX_TEXT = 1000
"""Characters of any other text in it."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One entry of `details.causes`; reason is FieldValueInvalid, FieldValueRequired, FieldValueDuplicate, ..."""

    reason: str
    message: str
    field: str = ""


@dataclass
class StatusError(Exception):
    """Raised anywhere in the controller; formatted once, by the API server, as a `Status` object."""

    reason: str
    message: str
    group: str = ""
    kind: str = ""
    """The plural resource name, as Kubernetes puts it in `details.kind`; the kind itself when reason is Invalid."""
    name: str = ""
    uid: str = ""
    causes: list[Cause] = field(default_factory=list)
    retry_after: int | None = None
    """Seconds. Clients of Kubernetes retry up to ten times when it is set: set it only when that is wanted."""

    def __post_init__(self) -> None:
        super().__init__(self.message)

    @property
    def code(self) -> int:
        return CODES[self.reason]

    def status(self) -> dict[str, Any]:
        """The `Status` object of meta/v1, bounded in size."""
        details: dict[str, Any] = {
            k: shortened(v)
            for k, v in (("name", self.name), ("group", self.group), ("kind", self.kind), ("uid", self.uid))
            if v
        }
        if self.causes:
            details["causes"] = [
                {
                    "reason": c.reason,
                    "message": shortened(c.message),
                    **({"field": shortened(c.field)} if c.field else {}),
                }
                for c in self.causes[:MAX_CAUSES]
            ]
        if self.retry_after is not None:
            details["retryAfterSeconds"] = self.retry_after
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": shortened(self.message, MAX_MESSAGE),
            "reason": self.reason,
            **({"details": details} if details else {}),
            "code": self.code,
        }


def shortened(text: str, most: int = _MAX_TEXT) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def not_found(group: str, plural: str, name: str) -> StatusError:
    qualified = f"{plural}.{group}" if group else plural
    return StatusError("NotFound", f'{qualified} "{name}" not found', group=group, kind=plural, name=name)


def already_exists(group: str, plural: str, name: str) -> StatusError:
    qualified = f"{plural}.{group}" if group else plural
    return StatusError("AlreadyExists", f'{qualified} "{name}" already exists', group=group, kind=plural, name=name)


def conflict(group: str, plural: str, name: str, why: str) -> StatusError:
    qualified = f"{plural}.{group}" if group else plural
    message = f'Operation cannot be fulfilled on {qualified} "{name}": {why}'
    return StatusError("Conflict", message, group=group, kind=plural, name=name)


def invalid(group: str, kind: str, name: str, causes: list[Cause]) -> StatusError:
    """All bad fields of one object at once, or the first hundred of them."""
    parts = [shortened(f"{c.field}: {c.message}" if c.field else c.message) for c in causes[:MAX_CAUSES]]
    if len(causes) > MAX_CAUSES:
        parts.append(f"and {len(causes) - MAX_CAUSES} more")
    listed = parts[0] if len(parts) == 1 else "[" + ", ".join(parts) + "]"
    qualified = f"{kind}.{group}" if group else kind
    message = f'{qualified} "{shortened(name)}" is invalid: {listed}'
    return StatusError("Invalid", message, group=group, kind=kind, name=name, causes=causes[:MAX_CAUSES])
