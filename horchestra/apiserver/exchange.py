"""One HTTP request and its response, as ASGI sees them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .listener import Connection

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
BODILESS = frozenset((204, 304))
JOINED = 64 * 1024
"""Bodies below this go out in one write with the head."""
ASGI = {"version": "3.0", "spec_version": "2.4"}


class Exchange:
    """Gives the application `scope`, `receive` and `send`, and frames what it sends."""

    __slots__ = (
        "_body",
        "_chunked",
        "_connection",
        "_delivered",
        "_head",
        "_held",
        "_left",
        "_method",
        "_status",
        "_waiter",
        "broken",
        "complete",
        "expect_continue",
        "failed",
        "keep_alive",
        "scope",
        "started",
        "streaming",
        "written",
    )

    def __init__(
        self,
        connection: Connection,
        method: str,
        version: str,
        path: bytes,
        query: bytes,
        headers: list[tuple[bytes, bytes]],
        keep_alive: bool,
    ) -> None:
        self.scope: Scope = {
            "type": "http",
            "asgi": ASGI,
            "http_version": version,
            "method": method,
            "scheme": "https",
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": connection.client,
            "server": connection.server,
            "extensions": {"tls": connection.tls, "write": self.push},
        }
        self._connection = connection
        self._method = method
        self.keep_alive = keep_alive
        self.expect_continue = False
        self.complete = False
        """The request has arrived in full."""
        self.broken = False
        """The rest of the request cannot be read."""
        self.started = False
        """The response has begun."""
        self.written = False
        """The response is written in full."""
        self.failed = False
        """The response broke off: the client must not take it for complete."""
        self.streaming = False
        """The response has no known length."""
        self._body: list[bytes] = []
        self._held = 0
        self._delivered = False
        self._waiter: asyncio.Future[None] | None = None
        self._head = b""
        self._status = 0
        self._left: int | None = None
        self._chunked = False

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            self.failed = True
            raise
        except ConnectionError:
            self.failed = True
        except Exception:
            log.exception("request failed: %s %s", self._method, self.scope["path"])
            self.failed = True
        finally:
            del self.scope["extensions"]["write"]  # else scope and exchange hold each other, and wait for the collector
            self.failed = self.failed or not self.written
            self._connection.finished(self)

    # The request

    def body_received(self, data: bytes) -> int:
        """Returns the bytes that wait to be taken."""
        self._body.append(data)
        self._held += len(data)
        self._wake()
        return self._held

    def request_complete(self) -> None:
        self.complete = True
        self._wake()

    def break_off(self) -> None:
        self.broken = True
        self._wake()

    def disconnected(self) -> None:
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> Message:
        connection = self._connection
        while not connection.lost and not self.broken:
            if self._body or (self.complete and not self._delivered):
                body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
                self._body.clear()
                self._held = 0
                self._delivered = self.complete
                if not self.complete:
                    connection.resume_reading()
                return {"type": "http.request", "body": body, "more_body": not self.complete}
            if self.expect_continue and not self.started:
                self.expect_continue = False
                connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._waiter = connection.loop.create_future()
            await self._waiter
        return {"type": "http.disconnect"}

    # The response

    async def send(self, message: Message) -> None:
        connection = self._connection
        if connection.lost:
            raise ConnectionResetError("the client has left")
        if message["type"] == "http.response.start":
            self._begin(message["status"], message["headers"])
            return
        if self.written:
            raise RuntimeError("the response is already complete")
        self._write(message.get("body", b""), message.get("more_body", False))
        if connection.write_paused:
            await connection.drain()

    def push(self, body: bytes) -> bool:
        """The `write` extension of the scope: writes a piece of a body that has begun, without waiting.

        False, and nothing is written, when the client has left or does not keep up.
        """
        if self._connection.lost or self._connection.write_paused or not self.started or self.written:
            return False
        self._write(body, True)
        return True

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if self._status:
            raise RuntimeError("the response has already begun")
        self._status = status
        lines = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, self._connection.listener.date]
        for name, value in headers:
            if b"\n" in value or b"\r" in value:
                raise ValueError(f"line break in response header {name!r}")
            if name == b"content-length":
                self._left = int(value)
            lines.append(name + b": " + value + b"\r\n")
        self._head = b"".join(lines)

    def _write(self, body: bytes, more: bool) -> None:
        head = b"" if self.started else self._finish_head(len(body), more)
        self.started = True
        if self._method == "HEAD" or self._status in BODILESS:
            body = b""
        elif self._chunked:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                body += b"0\r\n\r\n"
        elif self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the body is not as long as its content-length")
        self.written = not more
        write = self._connection.transport.write
        if head and len(body) < JOINED:
            write(head + body)
            return
        if head:
            write(head)
        if body:
            write(body)

    def _finish_head(self, size: int, more: bool) -> bytes:
        if not self.complete or self._connection.listener.closing:
            self.keep_alive = False
        head = self._head
        if self._left is None and self._status not in BODILESS:
            if not more:
                self._left = size
                head += b"content-length: %d\r\n" % size
            elif self.scope["http_version"] == "1.1":
                self._chunked = self.streaming = True
                self._connection.streaming()
                head += b"transfer-encoding: chunked\r\n"
            else:
                self.streaming = True
                self._connection.streaming()
                self.keep_alive = False
        if not self.keep_alive:
            head += b"connection: close\r\n"
        return head + b"\r\n"
