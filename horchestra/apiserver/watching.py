"""watch: what is there, then what happens, without loss or repetition."""

from __future__ import annotations

import asyncio
import random
import time

from horchestra.apimachinery.errors import StatusError
from horchestra.storage.watch import Batch, WatchCache

from . import freshness
from .fanout import Backlog, Fanout, Member, Scope, Write
from .lines import Lines
from .metrics import WATCHERS
from .request import Request
from .response import Stream, joined
from .selection import selection
from .view import View

LONGEST = (30 * 60, 60 * 60)
"""Seconds a watch lasts when the client names no timeout: a random time between the two, as in Kubernetes."""
_INITIAL_END = {"k8s.io/initial-events-end": "true"}


class Watcher:
    def __init__(self, cache: WatchCache) -> None:
        self._cache = cache
        self._fanouts: dict[Scope, Fanout] = {}
        self._backlog = Backlog()
        self._closing = False

    def close(self) -> None:
        """Ends every watch as if its time had come."""
        self._closing = True
        for fanout in tuple(self._fanouts.values()):
            fanout.end()

    async def watch(self, view: View, request: Request) -> Stream:
        """Raises StatusError for parameters that make no sense; what goes wrong later is an ERROR event."""
        chosen = selection(view, request)
        lines = Lines(view, request)
        initial, since = await self._start(request)
        bookmarks = request.flag("allowWatchBookmarks")
        ends_initial = bookmarks and request.flag("sendInitialEvents")
        seconds = request.number("timeoutSeconds") or random.uniform(*LONGEST)
        if request.expires is not None:
            seconds = min(seconds, max(request.expires - time.time(), 0))
        push = request.scope["extensions"].get("write")

        async def run(write: Write) -> None:
            now = self._cache.revision
            member = Member(chosen, lines, bookmarks, push, now, self._backlog)
            entries = chosen.entries(self._cache) if initial else []
            scope: Scope = (view.stored, chosen.namespace)
            with _Registration(self, scope, member, request, seconds):
                for piece in joined(lines.added(entry) for entry in entries):
                    await write(piece)
                if since is not None:
                    try:
                        missed = await self._missed(scope, since, now)
                    except StatusError as error:
                        await write(lines.error(error))
                        return
                    for piece in joined(line for event in missed for line in lines.batch(Batch([event]), chosen)):
                        await write(piece)
                if ends_initial:
                    await write(lines.bookmark(now, _INITIAL_END))
                await member.pump(write)

        return Stream(run)

    async def _missed(self, scope: Scope, since: int, now: int) -> Batch:
        """What happened after `since` up to `now`. Raises StatusError Expired."""
        history = self._cache.subscribe(*scope, since=since)
        try:
            if since >= now:
                return Batch()
            async with asyncio.timeout(0.001):  # what a subscription begins with is returned without any waiting
                return Batch([event for event in await history.next_batch() if event.revision <= now])
        except TimeoutError:
            return Batch()
        finally:
            history.close()

    async def _start(self, request: Request) -> tuple[bool, int | None]:
        """Whether to send what is there first, else the revision to follow from (None: from now on)."""
        text, wanted = request.param("resourceVersion"), freshness.revision(request)
        asked, match = request.param("sendInitialEvents"), request.param("resourceVersionMatch")
        if not asked and match:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            raise freshness.forbidden("resourceVersionMatch", why)
        if asked and match != "NotOlderThan":
            why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise freshness.forbidden("resourceVersionMatch", why)
        if asked and request.flag("sendInitialEvents"):
            await freshness.reached(self._cache, wanted)
            return True, None
        if text in ("", "0"):
            await freshness.reached(self._cache, wanted)
            return not asked, None
        if wanted is not None and wanted > self._cache.revision:
            await self._cache.caught_up()
        return False, wanted

    def join(self, scope: Scope, member: Member) -> Fanout:
        fanout = self._fanouts.get(scope)
        if fanout is None or fanout.over:
            fanout = self._fanouts[scope] = Fanout(self._cache, scope)
        fanout.join(member)
        if self._closing:
            member.end()
        return fanout

    def leave(self, scope: Scope, fanout: Fanout, member: Member) -> None:
        if fanout.leave(member) and self._fanouts.get(scope) is fanout:
            del self._fanouts[scope]


class _Registration:
    """While a watch is open: it ends with its time, the client, the decision and the server."""

    def __init__(self, watcher: Watcher, scope: Scope, member: Member, request: Request, seconds: float) -> None:
        self._watcher = watcher
        self._scope = scope
        self._member = member
        self._request = request
        self._seconds = seconds
        route = request.route
        self._gauge = WATCHERS.labels("watch", route.group, route.plural)

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._gauge.inc()
        self._fanout = self._watcher.join(self._scope, self._member)
        self._unsubscribe = self._request.withdrawn.subscribe(self._member.end)
        self._timer = loop.call_later(self._seconds, self._member.end)
        self._gone = loop.create_task(self._client_gone())

    def __exit__(self, *error: object) -> None:
        self._gauge.dec()
        self._unsubscribe()
        self._timer.cancel()
        self._gone.cancel()
        self._member.drop()
        self._watcher.leave(self._scope, self._fanout, self._member)

    async def _client_gone(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._member.end()
