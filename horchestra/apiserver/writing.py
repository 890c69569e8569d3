"""create, update, patch, delete and deletecollection, through the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horchestra.apimachinery import patch
from horchestra.apimachinery.errors import StatusError
from horchestra.apimachinery.registry import Resource
from horchestra.storage.patch import json_patch
from horchestra.storage.store import Store, WriteOptions, Written

from . import freshness, table
from .bodies import check_name, decode, media_type_of, read_object, report_duplicates
from .metrics import STORE_SECONDS
from .negotiation import Shape, shape
from .options import delete_options, write_options
from .reading import Reader
from .request import Request
from .response import Response, answer
from .view import View

Change = Callable[[dict[str, Any]], dict[str, Any]]

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = ("application/apply-patch+yaml", "application/apply-patch+cbor")


class Writer:
    def __init__(self, store: Store, reader: Reader) -> None:
        self._store = store
        self._reader = reader

    async def create(self, view: View, request: Request) -> Response:
        options = write_options(request)
        obj = await read_object(request, view.resource, validation=options.field_validation)
        with STORE_SECONDS.labels("create").time():
            written = await self._store.create(view.stored, obj, options)
        request.object_name = written.obj["metadata"]["name"]
        return _written(request, written, 201)

    async def update(self, view: View, request: Request) -> Response:
        options = write_options(request)
        obj = await read_object(request, view.resource, validation=options.field_validation)
        return await self._update(view, request, lambda current: obj, options)

    async def patch(self, view: View, request: Request) -> Response:
        options = write_options(request)
        media_type = media_type_of(request)
        if media_type in APPLY:
            raise StatusError(
                "UnsupportedMediaType",
                "server-side apply is not served by this version; leave --server-side out and apply again",
            )
        if media_type not in (MERGE, JSON_PATCH, STRATEGIC):
            raise StatusError(
                "UnsupportedMediaType",
                f'"{media_type[:100]}" is not supported; patches are {MERGE}, {JSON_PATCH} or {STRATEGIC}',
            )
        decoded = await decode(await request.body(), "application/json")
        report_duplicates(request, view.resource, decoded.duplicates, options.field_validation)
        return await self._update(view, request, _change(view.resource, media_type, decoded.value, request), options)

    async def _update(self, view: View, request: Request, change: Change, options: WriteOptions) -> Response:
        route = request.route
        with STORE_SECONDS.labels("update").time():
            written = await self._store.update(
                view.stored, route.namespace, route.name, change, options, subresource=route.subresource
            )
        return _written(request, written, 200)

    async def delete(self, view: View, request: Request) -> Response:
        options = await delete_options(request, await request.body())
        route = request.route
        with STORE_SECONDS.labels("delete").time():
            written = await self._store.delete(view.stored, route.namespace, route.name, options)
        request.warnings += written.warnings
        if not written.gone:
            return Response(written.body)
        details = {"name": route.name, "kind": route.plural, "uid": written.obj["metadata"].get("uid", "")}
        return answer(_success({**details, "group": route.group} if route.group else details))

    async def delete_collection(self, view: View, request: Request) -> Response:
        """Each object is its own deletion; one that somebody else removed meanwhile is passed over."""
        options = await delete_options(request, await request.body())
        await freshness.reached(self._store.watch, None)
        _, entries = self._reader.matching(view, request)
        for entry in entries:
            try:
                written = await self._store.delete(view.stored, entry.namespace, entry.name, options)
                request.warnings += written.warnings
            except StatusError as error:
                if error.reason != "NotFound":
                    raise
        return answer(_success({"kind": request.route.plural, "group": request.route.group}))


def _change(resource: Resource, media_type: str, value: Any, request: Request) -> Change:
    """The function that makes the new object of the current one; the store runs it inside the transaction."""
    if media_type != JSON_PATCH and not isinstance(value, dict):
        raise StatusError("BadRequest", "a merge patch is an object")

    def change(current: dict[str, Any]) -> dict[str, Any]:
        if media_type == JSON_PATCH:
            new = json_patch(current, value)
        elif media_type == STRATEGIC and resource.strategic_merge:
            new = patch.strategic(current, value)
        else:
            new = patch.merge(current, value)
        if not isinstance(new, dict):
            raise StatusError("BadRequest", "the patch leaves no object")
        if new.get("apiVersion") != resource.api_version or new.get("kind") != resource.kind:
            raise StatusError("BadRequest", "a patch cannot change apiVersion or kind")
        check_name(new, request, resource)
        return new

    return change


def _written(request: Request, written: Written, code: int) -> Response:
    request.warnings += written.warnings
    if shape(request.header(b"accept")) is Shape.METADATA:
        return Response(table.partial(written.obj), code)
    return Response(written.body, code)


def _success(details: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
