"""A client that costs little: requests made beforehand, answers counted and not looked at."""

from __future__ import annotations

import json
import socket
import ssl
from typing import Any

_BUFFER = 256 * 1024


class Connection:
    """One kept-alive TLS connection to the API on loopback. Raises RuntimeError for an answer that is not 2xx."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=60)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = context.wrap_socket(plain, server_hostname="127.0.0.1")
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)

    def send(self, prepared: bytes) -> None:
        self.socket.sendall(prepared)

    def receive(self) -> int:
        """Reads one answer; the bytes of its body."""
        return self._answer(None)

    def call(self, prepared: bytes) -> Any:
        """Sends, reads, and returns the answer's JSON."""
        self.send(prepared)
        body = bytearray()
        self._answer(body)
        return json.loads(body)

    def close(self) -> None:
        self.socket.close()

    def _answer(self, into: bytearray | None) -> int:
        got = 0
        while (end := self._buffer.find(b"\r\n\r\n", 0, got)) < 0:
            got += self._read(self._view[got:])
        head = bytes(self._buffer[:end]).lower()
        start = head.find(b"content-length: ")
        if not head.startswith(b"http/1.1 2") or start < 0:
            raise RuntimeError(f"the API answered {bytes(self._buffer[:got])!r}")
        length = int(head[start + 16 :].partition(b"\r\n")[0])
        left = length - (got - end - 4)
        if into is not None:
            into += self._view[end + 4 : got]
        while left > 0:
            got = self._read(self._view[:left])
            left -= got
            if into is not None:
                into += self._view[:got]
        return length

    def _read(self, into: memoryview) -> int:
        got = self.socket.recv_into(into)
        if not got:
            raise RuntimeError("the API closed the connection")
        return got


def request(method: str, path: str, body: Any = None, content_type: str = "application/json") -> bytes:
    """A request ready to be sent many times."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\nUser-Agent: bench\r\n"
    if content:
        head += f"Content-Type: {content_type}\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"\r\n" + content


def touch(collection: str, name: str, mark: str) -> bytes:
    """A small write to an object: one annotation."""
    change = {"metadata": {"annotations": {"bench": mark}}}
    return request("PATCH", f"{collection}/{name}", change, "application/merge-patch+json")
