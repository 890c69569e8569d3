"""get and list, from memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from horchestra.apimachinery import codec
from horchestra.apimachinery.errors import not_found
from horchestra.apimachinery.registry import Resource
from horchestra.storage.watch import Entry, WatchCache

from . import freshness, pods, table
from .negotiation import Shape, shape
from .paging import Page, Pages
from .request import Request
from .response import Response
from .selection import Selection, selection
from .view import View

VARY = (b"vary", b"Accept, Kubectl-Command")
STREAM_COMMANDS = ("kubectl logs", "kubectl exec", "kubectl attach", "kubectl port-forward")
_ROWS_AT_ONCE = 200
"""Table rows made before other requests get their turn."""


class Reader:
    def __init__(self, cache: WatchCache) -> None:
        self._cache = cache
        self._pages = Pages()

    async def get(self, view: View, request: Request) -> Response:
        """Raises StatusError NotFound."""
        route = request.route
        await freshness.reached(self._cache, freshness.revision(request))
        entry = view.get(self._cache, route.namespace, route.name)
        if entry is None:
            raise not_found(route.group, route.plural, route.name)
        command = request.header(b"kubectl-command")
        if command.startswith(STREAM_COMMANDS) and _is_application(view.resource):
            entry = pods.project(entry) or entry
        return Response(await self._single(view.resource, entry, request), headers=[VARY])

    async def _single(self, resource: Resource, entry: Entry, request: Request) -> bytes | list[bytes]:
        match shape(request.header(b"accept")):
            case Shape.TABLE:
                metadata = codec.encode({"resourceVersion": str(entry.revision)})
                return table.table(resource, metadata, await _rows(resource, [entry], request))
            case Shape.METADATA:
                return table.partial(entry.obj)
        return entry.body

    async def list(self, view: View, request: Request) -> Response:
        """Raises StatusError BadRequest, Expired, Timeout."""
        chosen = selection(view, request)
        limit = request.number("limit") or 0
        exact = freshness.match(request) == "Exact"
        wanted = freshness.revision(request)
        continued = request.param("continue")
        revision = await freshness.reached(self._cache, None if continued else wanted)
        if exact and wanted != revision:
            raise freshness.no_longer(wanted)
        wants = shape(request.header(b"accept"))
        if not limit and not continued and wants is Shape.OBJECT and view.project is None and chosen.name is None:
            body = self._cache.list_body(view.stored, chosen.namespace, chosen.labels, chosen.fields)
            return Response(list(body), headers=[VARY])
        entries = chosen.entries(self._cache)
        revision = self._cache.revision
        if continued:
            page = self._pages.following(chosen, continued, limit, entries, revision)
        else:
            page = self._pages.first(chosen, entries, revision, limit)
        return Response(await _page(view.resource, page, wants, request), headers=[VARY])

    def matching(self, view: View, request: Request) -> tuple[Selection, Sequence[Entry]]:
        """What a collection request is about, as of now."""
        chosen = selection(view, request)
        return chosen, chosen.entries(self._cache)


def _is_application(resource: Resource) -> bool:
    return (resource.group, resource.version, resource.plural) == pods.APPLICATIONS


async def _page(resource: Resource, page: Page, wants: Shape, request: Request) -> list[bytes]:
    metadata = codec.encode(page.metadata())
    if wants is Shape.TABLE:
        return table.table(resource, metadata, await _rows(resource, page.entries, request))
    if wants is Shape.METADATA:
        kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
        items = [table.partial(entry.obj) for entry in page.entries]
    else:
        kind, version = f"{resource.kind}List", resource.api_version
        items = [entry.body for entry in page.entries]
    head = f'{{"kind":"{kind}","apiVersion":"{version}","metadata":'.encode() + metadata + b',"items":['
    return [head, b",".join(items), b"]}"]


async def _rows(resource: Resource, entries: Sequence[Entry], request: Request) -> list[bytes]:
    include = table.include_object(request.param("includeObject"))
    now = datetime.now(UTC)
    rows: list[bytes] = []
    for start in range(0, len(entries), _ROWS_AT_ONCE):
        if start:
            await asyncio.sleep(0)
        rows += [table.row(resource, e, include, now) for e in entries[start : start + _ROWS_AT_ONCE]]
    return rows
