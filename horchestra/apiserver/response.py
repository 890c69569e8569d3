"""What a handler gives back, and how it goes out."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from horchestra.apimachinery import codec
from horchestra.apimachinery.errors import StatusError

from .exchange import Send

JSON = b"application/json"
PIECE = 256 * 1024
"""Large bodies go out in pieces of about this size, so that what a slow client has not taken is not held twice."""
GZIP_FROM = 128 * 1024
"""Smaller answers are not worth compressing (the threshold of Kubernetes)."""
WARNING_BYTES = 4096
WARNING_CHARACTERS = 500

Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class Response:
    """A whole answer. `body` may be many pieces that are joined only on their way out."""

    body: bytes | list[bytes] = b""
    code: int = 200
    content_type: bytes = JSON
    headers: Headers = field(default_factory=list)
    reason: str = ""
    """Reason of the Status, for the audit line."""


@dataclass(slots=True)
class Stream:
    """An answer of unknown length. `run` sends the body after the head has gone out; `close` is called in any case."""

    run: Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[None]]
    content_type: bytes = JSON
    headers: Headers = field(default_factory=list)
    close: Callable[[], Awaitable[None]] | None = None


def answer(value: Any, code: int = 200) -> Response:
    return Response(codec.encode(value), code)


def failure(error: StatusError) -> Response:
    headers = [] if error.retry_after is None else [(b"retry-after", b"%d" % error.retry_after)]
    return Response(codec.encode(error.status()), error.code, headers=headers, reason=error.reason)


def warning_headers(warnings: Iterable[str]) -> Iterator[tuple[bytes, bytes]]:
    """`Warning: 299 - "text"` (RFC 7234 5.5), as Kubernetes sends it; 4 KiB of them at the most."""
    total = 0
    for text in dict.fromkeys(warnings):
        printable = "".join(c if c.isprintable() else " " for c in text[:WARNING_CHARACTERS])
        escaped = printable.replace("\\", "\\\\").replace('"', '\\"').encode()
        total += len(escaped)
        if total > WARNING_BYTES:
            return
        yield b"warning", b'299 - "%b"' % escaped


async def send(response: Response, extra: Headers, accepts_gzip: bool, transmit: Send) -> None:
    """Sends head and body; compresses large ones in a thread."""
    body = response.body
    headers = [(b"content-type", response.content_type), *response.headers, *extra]
    size = len(body) if isinstance(body, bytes) else sum(map(len, body))
    if accepts_gzip and size >= GZIP_FROM and not any(name == b"content-encoding" for name, _ in headers):
        body = await asyncio.to_thread(gzip, body)
        size = len(body)
        headers.append((b"content-encoding", b"gzip"))
    if isinstance(body, bytes) and size <= PIECE:
        await transmit({"type": "http.response.start", "status": response.code, "headers": headers})
        await transmit({"type": "http.response.body", "body": body})
        return
    headers.append((b"content-length", b"%d" % size))
    await transmit({"type": "http.response.start", "status": response.code, "headers": headers})
    for piece in _pieces(body):
        await transmit({"type": "http.response.body", "body": piece, "more_body": True})
    await transmit({"type": "http.response.body", "body": b""})


async def stream(response: Stream, extra: Headers, transmit: Send) -> None:
    headers = [(b"content-type", response.content_type), *response.headers, *extra]

    async def write(data: bytes) -> None:
        await transmit({"type": "http.response.body", "body": data, "more_body": True})

    try:
        await transmit({"type": "http.response.start", "status": 200, "headers": headers})
        await write(b"")  # the head goes out now, whenever the first byte of the body comes
        await response.run(write)
        await transmit({"type": "http.response.body", "body": b""})
    finally:
        if response.close is not None:
            await response.close()


def _pieces(body: bytes | list[bytes]) -> Iterator[bytes | memoryview]:
    if isinstance(body, bytes):
        view = memoryview(body)
        for start in range(0, len(view), PIECE):
            yield view[start : start + PIECE]
        return
    yield from joined(body)


def joined(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of at least PIECE, but for the last: few writes, and none that holds up the loop."""
    held: list[bytes] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= PIECE:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def gzip(body: bytes | list[bytes]) -> bytes:
    """RFC 1952, fastest level: on a local network compressing harder costs more time than it saves."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
    parts = [compressor.compress(piece) for piece in _pieces(body)]
    return b"".join((*parts, compressor.flush()))
