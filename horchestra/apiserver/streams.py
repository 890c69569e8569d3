"""`kubectl logs`: lines from a node's journal, carried through the node's session."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from horchestra.apimachinery.desired import LogRequest
from horchestra.apimachinery.errors import Cause, StatusError, invalid, not_found
from horchestra.storage.watch import Entry, WatchCache

from . import freshness, pods
from .metrics import WATCHERS
from .request import Request
from .response import Stream
from .view import View

if TYPE_CHECKING:
    from horchestra.nodes.sessions import Sessions
    from horchestra.nodes.streams import ByteStream

log = logging.getLogger(__name__)

Write = Callable[[bytes], Awaitable[None]]

FIRST_BYTE = 2.0
"""Seconds to wait for the first line or error before the answer begins: an error that comes by then is a Status."""
CLOSE_TIME = 5.0
"""Seconds the node's side is given to end when the client has left."""
CHUNKS = 16
"""Chunks read ahead of the client; then the node's stream is not read on."""
NOT_SERVED = frozenset(("exec", "attach", "portforward", "ephemeralcontainers", "eviction"))


class Streams:
    def __init__(self, cache: WatchCache, sessions: Sessions, per_user: int) -> None:
        self._cache = cache
        self._sessions = sessions
        self._per_user = per_user
        self._open: Counter[str] = Counter()
        self._copiers: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Ends every stream as if there were nothing more to say."""
        for copier in tuple(self._copiers):
            copier.cancel()

    async def logs(self, view: View, request: Request) -> Stream:
        """Raises StatusError NotFound, BadRequest, Invalid, TooManyRequests, ServiceUnavailable."""
        route, user = request.route, request.user.name
        await freshness.reached(self._cache, None)
        application = self._cache.get(view.stored, route.namespace, route.name)
        if application is None or pods.project(application) is None:
            raise not_found(route.group, route.plural, route.name)
        wanted = log_request(application, request).model_dump_json().encode()
        node = node_of(application)
        if self._open[user] >= self._per_user:
            message = f"{self._per_user} log streams of {user} are open, which is the limit; close one first"
            raise StatusError("TooManyRequests", message)
        self._open[user] += 1
        try:
            source = Source(await self._sessions.open_stream(node, "logs", wanted))
        except BaseException:
            self._release(user)
            raise

        async def close() -> None:
            self._release(user)
            await source.close()

        try:
            await source.begin()
        except BaseException:
            await close()
            raise
        return Stream(lambda write: self._run(source, request, write), content_type=b"text/plain", close=close)

    def _release(self, user: str) -> None:
        self._open[user] -= 1
        if not self._open[user]:
            del self._open[user]

    async def _run(self, source: Source, request: Request, write: Write) -> None:
        """Copies until the source ends, the client leaves, the identity ends, the decision is withdrawn or we close."""
        loop = asyncio.get_running_loop()
        copier = loop.create_task(source.copy(write))
        gone = loop.create_task(_client_gone(request))
        gone.add_done_callback(lambda _: copier.cancel())
        unsubscribe = request.withdrawn.subscribe(partial(_cancel, copier))
        left = float("inf") if request.expires is None else max(request.expires - time.time(), 0)
        timer = loop.call_later(min(left, 10**8), copier.cancel)
        gauge = WATCHERS.labels("connect", request.route.group, "pods/log")
        self._copiers.add(copier)
        gauge.inc()
        try:
            await asyncio.wait([copier])
            if not copier.cancelled():
                copier.result()
        finally:
            gauge.dec()
            self._copiers.discard(copier)
            copier.cancel()
            gone.cancel()
            unsubscribe()
            timer.cancel()


class Source:
    """A node's stream, read ahead by a few chunks."""

    def __init__(self, chunks: ByteStream) -> None:
        self._chunks = chunks
        self._queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(CHUNKS)
        self._first: bytes | Exception | None = None
        self._begun = False
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def begin(self) -> None:
        """Waits a moment for the first chunk. Raises the StatusError that came instead of it."""
        try:
            async with asyncio.timeout(FIRST_BYTE):
                self._first = await self._queue.get()
        except TimeoutError:
            return
        self._begun = True
        if isinstance(self._first, Exception):
            raise self._first

    async def copy(self, write: Write) -> None:
        """Raises ConnectionError when the stream broke off, so that the client does not take it for complete."""
        chunk = self._first if self._begun else await self._queue.get()
        while chunk is not None:
            if isinstance(chunk, Exception):
                log.warning("a log stream broke off: %s", chunk)
                raise ConnectionAbortedError(str(chunk))
            if chunk:
                await write(chunk)
            chunk = await self._queue.get()

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.wait([self._reader], timeout=CLOSE_TIME)

    async def _read(self) -> None:
        try:
            async for chunk in self._chunks:
                await self._queue.put(chunk)
            await self._queue.put(None)
        except Exception as error:
            await self._queue.put(error)
        finally:
            await self._chunks.aclose()


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


async def _client_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def node_of(application: Entry) -> str:
    """Raises StatusError BadRequest when the application is on no node."""
    spec, status = application.obj["spec"], application.obj.get("status", {})
    node = spec.get("nodeName") or status.get("node")
    if not node:
        where = f'application "{application.namespace}/{application.name}"'
        raise StatusError("BadRequest", f"{where} is not placed on a node yet, so it has no logs")
    return str(node)


def log_request(application: Entry, request: Request) -> LogRequest:
    """The query of pods/log. Raises StatusError BadRequest, Invalid."""
    container = request.param("container")
    if container and container != application.name:
        message = f"container {container[:253]} is not valid for pod {application.name}; it has one: {application.name}"
        raise StatusError("BadRequest", message)
    since_seconds, since_time = request.number("sinceSeconds"), request.param("sinceTime") or None
    causes = []
    if since_seconds is not None and since_time:
        causes.append(
            Cause("FieldValueForbidden", "at most one of sinceTime or sinceSeconds may be given", "sinceTime")
        )
    if since_seconds == 0:
        causes.append(Cause("FieldValueInvalid", "must be greater than 0", "sinceSeconds"))
    if since_time and not _is_time(since_time):
        causes.append(Cause("FieldValueInvalid", f"{since_time[:64]!r} is not an RFC 3339 time", "sinceTime"))
    if request.number("limitBytes") == 0:
        causes.append(Cause("FieldValueInvalid", "must be greater than 0", "limitBytes"))
    if causes:
        raise invalid("", "PodLogOptions", application.name, causes)
    return LogRequest(
        uid=application.uid,
        namespace=application.namespace,
        name=application.name,
        follow=request.flag("follow"),
        tail_lines=request.number("tailLines"),
        since_seconds=since_seconds,
        since_time=since_time,
        timestamps=request.flag("timestamps"),
        previous=request.flag("previous"),
        limit_bytes=request.number("limitBytes"),
    )


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
