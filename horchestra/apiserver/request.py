"""One API request, read as far as every verb needs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from horchestra.apimachinery.admission import User
from horchestra.apimachinery.errors import StatusError
from horchestra.authz.authorizer import NEVER, Signal

from .exchange import Receive, Scope
from .routes import Route

MAX_BODY = 3 * 1024 * 1024
TRUE = frozenset(("true", "1", "True", "t", "T", "TRUE"))
FALSE = frozenset(("", "false", "0", "False", "f", "F", "FALSE"))


@dataclass(slots=True)
class Request:
    """`headers` has the last value of each header; the bodies of requests are bounded by MAX_BODY."""

    id: str
    method: str
    route: Route
    user: User
    headers: dict[bytes, bytes]
    query: dict[str, list[str]]
    scope: Scope
    receive: Receive
    expires: float | None = None
    """When the identity ends (seconds since the epoch); streams end with it."""
    withdrawn: Signal = NEVER
    """Fires when the request is no longer allowed; streams end with it."""
    warnings: list[str] = field(default_factory=list)
    """Become `Warning` headers of the answer."""
    dry_run: bool = False
    object_name: str = ""
    """Of an object to be created, which the path does not name; for audit."""

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    def param(self, name: str) -> str:
        """The first value of a query parameter, or ""."""
        values = self.query.get(name)
        return values[0] if values else ""

    def flag(self, name: str) -> bool:
        """Raises StatusError BadRequest when it is neither true nor false."""
        text = self.param(name)
        if text in TRUE:
            return True
        if text in FALSE:
            return False
        raise StatusError("BadRequest", f"{name}={text!r}: must be true or false")

    def number(self, name: str) -> int | None:
        """A non-negative integer, or None when the parameter is absent. Raises StatusError BadRequest."""
        text = self.param(name)
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise StatusError("BadRequest", f"{name}={text!r}: must be a number that is not negative")
        return int(text)

    async def body(self) -> bytes:
        """The whole body. Raises StatusError RequestEntityTooLarge, and ConnectionResetError when the client left."""
        length = self.headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > MAX_BODY:
            raise too_large()
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] != "http.request":
                raise ConnectionResetError("the client left before its request was complete")
            parts.append(message["body"])
            size += len(message["body"])
            if size > MAX_BODY:
                raise too_large()
            if not message["more_body"]:
                return parts[0] if len(parts) == 1 else b"".join(parts)


def too_large() -> StatusError:
    return StatusError("RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY} bytes")


def parse_query(raw: bytes) -> dict[str, list[str]]:
    """Raises StatusError BadRequest."""
    if not raw:
        return {}
    try:
        return parse_qs(raw.decode("ascii"), keep_blank_values=True, max_num_fields=200)
    except ValueError as error:
        raise StatusError("BadRequest", f"the query cannot be read: {error}") from error


def header_map(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The first value of `accept` is kept whole when it came in several lines."""
    mapped: dict[bytes, bytes] = dict(headers)
    if len(mapped) != len(headers):
        accepts = [value for name, value in headers if name == b"accept"]
        if len(accepts) > 1:
            mapped[b"accept"] = b",".join(accepts)
    return mapped


def source_address(scope: Scope) -> str:
    client: Any = scope.get("client")
    return client[0] if client else ""
