"""Byte streams from nodes (logs): asked for down the session, opened by the agent, read with back-pressure."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any, Self

import grpc

from horchestra.apimachinery.errors import CODES, StatusError

from .bounds import cut

EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # missing from the stubs
OPEN_SECONDS = 10
MAX_CHUNK_BYTES = 1 << 20
CHUNKS = 8
"""Chunks (64 KiB) that wait for the reader; the agent is held back by gRPC's flow control beyond that."""
ASKED_WRONGLY = frozenset(("NoPreviousProcess", "BadLogRequest"))
"""Reasons of an agent that asking again does not change; Kubernetes answers them with BadRequest."""


class ByteStream:
    """An async iterator of bytes. `aclose()` ends it on the node too; so does the end of the node's session.

    Iterating raises StatusError: what the node says (its reason where the API knows it), or ServiceUnavailable when the
    node went away in the middle.
    """

    def __init__(self, node: str, stream_id: str) -> None:
        self.node = node
        self.id = stream_id
        self.opened = asyncio.Event()
        self.closed = asyncio.Event()
        self._chunks: deque[bytes] = deque()
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._finished = False
        self._error: StatusError | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._chunks:
            if self._finished:
                self.closed.set()
                raise self._error or StopAsyncIteration
            self._readable.clear()
            await self._readable.wait()
        self._writable.set()
        return self._chunks.popleft()

    async def aclose(self) -> None:
        self._chunks.clear()
        self.finish()
        self.closed.set()
        self._writable.set()

    async def put(self, chunk: bytes) -> None:
        """From the node's side; waits until the reader has room or has gone."""
        while len(self._chunks) >= CHUNKS and not self.closed.is_set():
            self._writable.clear()
            await self._writable.wait()
        if not self.closed.is_set():
            self._chunks.append(chunk)
            self._readable.set()

    def finish(self, error: StatusError | None = None) -> None:
        """The last word; what has arrived can still be read. Only the first call counts."""
        if not self._finished:
            self._finished, self._error = True, error
        self._readable.set()

    def lost(self) -> None:
        message = f'node "{self.node}" went away while the stream was open'
        self.finish(StatusError("ServiceUnavailable", message))


class Streams:
    """Streams that were asked for and are not over, by id."""

    def __init__(self) -> None:
        self._streams: dict[str, ByteStream] = {}

    async def open(self, node: str, ask: Callable[[str], None]) -> ByteStream:
        """`ask` sends the request with the stream's id. Raises StatusError ServiceUnavailable after ten seconds."""
        stream = ByteStream(node, secrets.token_hex(16))
        self._streams[stream.id] = stream
        try:
            ask(stream.id)
            async with asyncio.timeout(OPEN_SECONDS):
                await stream.opened.wait()
        except TimeoutError:
            self._streams.pop(stream.id, None)
            message = f'node "{node}" did not open the stream within {OPEN_SECONDS} s; its agent is busy or going away'
            raise StatusError("ServiceUnavailable", message) from None
        except BaseException:
            self._streams.pop(stream.id, None)
            raise
        return stream

    def session_ended(self, node: str) -> None:
        for stream in [s for s in self._streams.values() if s.node == node]:
            stream.lost()
            stream.opened.set()

    async def serve(self, node: str, context: Any) -> None:
        """The agent's call: feed the stream that its first message names. Only the node that was asked may."""
        first = EOF
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPEN_SECONDS):
                first = await context.read()
        stream = self._streams.get(first.stream_id) if first is not EOF else None
        if stream is None or stream.node != node or stream.opened.is_set():
            await context.abort(grpc.StatusCode.NOT_FOUND, "nobody waits for this stream")
            return
        stream.opened.set()
        feeding = asyncio.ensure_future(_feed(stream, context))
        closing = asyncio.ensure_future(stream.closed.wait())
        try:
            await asyncio.wait((feeding, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.pop(stream.id, None)
            feeding.cancel()
            closing.cancel()
            stream.lost()  # unless it was finished: the call was cancelled, its connection is gone


def _reason(said: str) -> str:
    """The API's reason for what an agent said; one that it does not know is a fault of the node."""
    if said in ASKED_WRONGLY:
        return "BadRequest"
    return said if said in CODES else "ServiceUnavailable"


async def _feed(stream: ByteStream, context: Any) -> None:
    while True:
        message = await context.read()
        if message is EOF:
            stream.lost()
            return
        if message.HasField("error"):
            stream.finish(StatusError(_reason(message.error.reason), cut(message.error.message)))
            await stream.closed.wait()
            return
        if len(message.data) > MAX_CHUNK_BYTES:
            stream.finish(StatusError("ServiceUnavailable", f'node "{stream.node}" sent more at once than is taken'))
            return
        if message.data:
            await stream.put(message.data)
        if message.end:
            stream.finish()
            await stream.closed.wait()
            return
