"""The API door's socket: TLS connections carrying HTTP/1.1 into a raw ASGI application.

`Connection` parses requests (httptools) and keeps time and flow; `exchange.Exchange` is one request and its response.
Requests of a connection are answered one after the other in the order they came; reading pauses while one is answered
and the next is known, or while its body is not taken.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import deque
from dataclasses import dataclass
from email.utils import formatdate
from math import inf
from typing import Any, cast

import httptools

from . import tls
from .exchange import ASGIApp, Exchange

log = logging.getLogger(__name__)

SSLProtocol.max_size = 32 * 1024  # asyncio's read buffer of each connection, which an idle client makes it hold


SEND_BUFFER = 256 * 1024
"""Bytes the kernel takes for a client; left to itself it takes megabytes, for each of thousands that do not read."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds."""

    headers: int = 72 * 1024
    """Request line and headers; a Kerberos ticket with many groups takes up to 64 KiB."""
    pipelined: int = 64
    """Requests a client may send ahead of their answers."""
    unread_body: int = 256 * 1024
    """Body bytes held before reading pauses until the application takes them."""
    unsent: int = 64 * 1024
    """Bytes written for a client that does not take them before the application has to wait."""
    handshake_time: float = 10
    header_time: float = 15
    body_time: float = 60
    idle_time: float = 90
    stalled_time: float = 60
    """How long a client may take none of a response of known length."""
    stalled_stream_time: float = 15 * 60
    """The same for streams: somebody may be reading a log in a pager."""
    linger_time: float = 5
    """How long a refused request is still read, so that the client sees the answer and not a reset."""
    quiet_time: float = 0.5
    """A client that was refused and sends nothing for so long has its answer."""
    user_timeout: int = 30
    """TCP_USER_TIMEOUT: a peer that vanished is noticed after this."""


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.limits = listener.limits
        self.loop = listener.loop
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.parser = httptools.HttpRequestParser(self)
        self.client: tuple[str, int] | None = None
        self.server: tuple[str, int] | None = None
        self.tls: dict[str, Any] = {}
        self.lost = False
        self.deadline = inf
        self.write_paused = False
        self._paused_since = inf
        self._drained: list[asyncio.Future[None]] = []
        self._reading = True
        self._lingering = False
        self._heard = 0.0
        self._deaf = False
        """What the client sends from now on is dropped."""
        self._refusal: bytes | None = None
        self._in_headers = False
        self._began = False
        """The message that is read began in the data at hand."""
        self._header_bytes = 0
        """Of what was parsed."""
        self._unparsed_bytes = 0
        """Of whole pieces that came since the message began and did not complete its headers."""
        self._hosts = 0
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._expect_continue = False
        self._incoming: Exchange | None = None
        self._active: Exchange | None = None
        self._waiting: deque[Exchange] = deque()

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.client = _address(transport.get_extra_info("peername"))
        self.server = _address(transport.get_extra_info("sockname"))
        self.tls = tls.extension(transport.get_extra_info("ssl_object"))
        self.transport.set_write_buffer_limits(high=self.limits.unsent)
        _notice_vanished_peers(transport.get_extra_info("socket"), self.limits.user_timeout)
        self.deadline = self.loop.time() + self.limits.idle_time
        self.listener.connections.add(self)
        if self.listener.closing:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.listener.connections.discard(self)
        self.resume_writing()
        for exchange in (self._active, *self._waiting):
            if exchange is not None:
                exchange.disconnected()
        self._waiting.clear()

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        self.write_paused = True
        self._paused_since = self.loop.time()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._paused_since = inf
        for waiter in self._drained:
            if not waiter.done():
                waiter.set_result(None)
        self._drained.clear()

    async def drain(self) -> None:
        """Waits until the client has taken enough of what was written, or is gone."""
        while self.write_paused and not self.lost:
            waiter = self.loop.create_future()
            self._drained.append(waiter)
            await waiter

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._deaf:
            self._heard = self.loop.time()
            return
        if not self._in_headers and self._incoming is None:
            self._in_headers = True
            self._header_bytes = self._unparsed_bytes = 0
            self.deadline = self.loop.time() + self.limits.header_time if self._active is None else inf
        self._began = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Nothing here speaks another protocol yet: the request is answered as plain HTTP and the connection closed.
            self._deaf = True
            return
        except httptools.HttpParserError as error:
            self._refuse(400, "BadRequest", f"this is not HTTP/1.1: {error}")
            return
        if self._in_headers and self._incoming is None and not self._began:
            self._unparsed_bytes += len(data)
            self._check_headers()

    def timed_out(self, now: float) -> bool:
        """Called once a second."""
        if self._lingering and self._heard + self.limits.quiet_time < now:
            self.transport.close()
            return False
        if self.deadline < now:
            return True
        streaming = self._active is not None and self._active.streaming
        patience = self.limits.stalled_stream_time if streaming else self.limits.stalled_time
        return self._paused_since + patience < now

    # Parser

    def on_message_begin(self) -> None:
        self._in_headers = self._began = True
        self._url = b""
        self._headers = []
        self._header_bytes = self._unparsed_bytes = self._hosts = 0
        self._expect_continue = False

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._header_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._header_bytes += len(name) + len(value) + 4
        if self._incoming is not None:  # a trailer: nothing asks for one
            self._check_headers()
            return
        if name == b"host":
            self._hosts += 1
        elif name == b"expect" and value.lower() == b"100-continue":
            self._expect_continue = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_headers = False
        if self._lingering or not self._check_headers():
            return
        if len(self._waiting) >= self.limits.pipelined:
            self._refuse(400, "BadRequest", f"more than {self.limits.pipelined} requests sent ahead of their answers")
            return
        parser = self.parser
        if self._hosts > 1 or (not self._hosts and parser.get_http_version() == "1.1"):
            self._refuse(400, "BadRequest", f"the request has {self._hosts} Host headers; it must have one")
            return
        keep_alive = parser.should_keep_alive() and not parser.should_upgrade()
        path, _, query = self._url.partition(b"?")
        if not path.startswith(b"/"):
            path, query = _absolute(self._url)
        exchange = self._incoming = Exchange(
            self, parser.get_method().decode(), parser.get_http_version(), path, query, self._headers, keep_alive
        )
        exchange.expect_continue = self._expect_continue
        if self._active is None:
            self.deadline = self.loop.time() + self.limits.body_time
            self._start(exchange)
        else:
            self._waiting.append(exchange)
            self.pause_reading()

    def on_body(self, body: bytes) -> None:
        exchange = self._incoming
        if exchange is not None and exchange.body_received(body) > self.limits.unread_body:
            self.pause_reading()

    def on_message_complete(self) -> None:
        exchange, self._incoming = self._incoming, None
        if exchange is None:
            return
        exchange.request_complete()
        if exchange is self._active:
            self.deadline = inf

    def _check_headers(self) -> bool:
        if self._deaf:
            return False
        if max(self._header_bytes, self._unparsed_bytes) <= self.limits.headers:
            return True
        self._refuse(431, "RequestEntityTooLarge", f"request line and headers exceed {self.limits.headers} bytes")
        return False

    # Exchanges

    def _start(self, exchange: Exchange) -> None:
        self._active = exchange
        self.listener.run(exchange)

    def finished(self, exchange: Exchange) -> None:
        """The response is written, or has failed."""
        if self.lost or self._active is not exchange:
            return
        self._active = None
        if exchange.failed:
            if self._refusal is not None and exchange.broken and not exchange.started:
                self._refuse_now(self._refusal)
            else:
                self.transport.abort()
        elif self._incoming is exchange:
            self._linger()
        elif not exchange.keep_alive or self.listener.closing:
            self._linger() if self._waiting else self.transport.close()
        elif self._waiting:
            following = self._waiting.popleft()
            self.deadline = inf if following.complete else self.loop.time() + self.limits.body_time
            self._start(following)
            self.resume_reading()
        elif self._refusal is not None:
            self._refuse_now(self._refusal)
        else:
            now = self.loop.time()
            self.deadline = now + (self.limits.header_time if self._in_headers else self.limits.idle_time)
            self.resume_reading()

    def streaming(self) -> None:
        """The answer has no end yet. Who looks at a log in a pager takes nothing for long and is there all the same:
        TCP_USER_TIMEOUT would not see that, keepalive does."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)

    def close_when_idle(self) -> None:
        if self._active is None and not self._lingering:
            self.transport.close()

    def _refuse(self, code: int, reason: str, message: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        body = json.dumps({**status, "message": message, "reason": reason, "code": code}).encode()
        head = f"HTTP/1.1 {code} \r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
        self._deaf = True
        self._refusal = head.encode() + b"\r\n\r\n" + body
        if self._incoming is not None:
            self._incoming.break_off()
        if self._active is None:
            self._refuse_now(self._refusal)
        else:
            self.pause_reading()

    def _refuse_now(self, answer: bytes) -> None:
        self.transport.write(answer)
        self._linger()

    def _linger(self) -> None:
        # Closing with unread bytes would send a reset, which can destroy the answer on its way.
        self._lingering = True
        self._waiting.clear()
        self._heard = self.loop.time()
        self.deadline = self._heard + self.limits.linger_time
        self.resume_reading()

    def pause_reading(self) -> None:
        if self._reading and not self.lost:
            self._reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._reading and not self.lost:
            self._reading = True
            self.transport.resume_reading()


class Listener:
    """Accepts connections; `close` and `wait_closed` end them as `asyncio.Server` would, after a grace period."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app = app
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.closing = False
        self.port = 0
        """The port it listens on."""
        self.date = _date()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server = cast(asyncio.Server, None)
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, context: ssl.SSLContext) -> None:
        self._server = await self.loop.create_server(
            lambda: Connection(self),
            host,
            port,
            ssl=context,
            backlog=2048,
            ssl_handshake_timeout=self.limits.handshake_time,
            ssl_shutdown_timeout=2,
        )
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._sweeper = self.loop.create_task(self._sweep())

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return tuple(self._server.sockets)

    def run(self, exchange: Exchange) -> None:
        task = self.loop.create_task(exchange.run(self.app))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Accepts nothing more; idle connections end at once, others with the response under way."""
        self.closing = True
        self._server.close()
        for connection in tuple(self.connections):
            connection.close_when_idle()

    async def wait_closed(self, grace: float = 5) -> None:
        """Waits for the responses under way, at most `grace` seconds, then breaks off what is left."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for connection in tuple(self.connections):
            connection.transport.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
        await self._server.wait_closed()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.date = _date()
            now = self.loop.time()
            for connection in [c for c in self.connections if c.timed_out(now)]:
                connection.transport.abort()


async def serve(
    app: ASGIApp, host: str, port: int, ssl_context: ssl.SSLContext, limits: Limits | None = None
) -> Listener:
    """Serves `app` on host:port (port 0: any free one, see `Listener.port`) until the listener is closed."""
    listener = Listener(app, limits or Limits())
    await listener.start(host, port, ssl_context)
    return listener


def _date() -> bytes:
    return b"date: " + formatdate(usegmt=True).encode() + b"\r\n"


def _address(name: Any) -> tuple[str, int] | None:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None


def _absolute(url: bytes) -> tuple[bytes, bytes]:
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        return b"/", b""
    return parsed.path or b"/", parsed.query or b""


def _notice_vanished_peers(sock: socket.socket | None, user_timeout: int) -> None:
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(user_timeout // 3, 1))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(user_timeout // 9, 1))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout * 1000)
