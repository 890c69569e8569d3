"""Request bodies as objects, checked against the URL they were sent to."""

from __future__ import annotations

import asyncio
from typing import Any

from horchestra.apimachinery import codec
from horchestra.apimachinery.codec import Decoded
from horchestra.apimachinery.errors import StatusError
from horchestra.apimachinery.registry import Resource

from . import protobuf
from .request import Request

THREADED_FROM = 64 * 1024


async def read_object(request: Request, resource: Resource, *, validation: str) -> dict[str, Any]:
    """The object to create or replace, with apiVersion, kind and metadata.namespace set.

    A body without a Content-Type is JSON. Raises StatusError BadRequest, RequestEntityTooLarge, UnsupportedMediaType.
    """
    body = await request.body()
    media_type = media_type_of(request)
    decoded = await decode(body, media_type)
    report_duplicates(request, resource, decoded.duplicates, validation)
    value = decoded.value
    if not isinstance(value, dict):
        raise StatusError("BadRequest", "the body must be one object")
    _check_kind(value, resource)
    check_name(value, request, resource)
    name = value["metadata"].get("name")
    request.object_name = name[:253] if isinstance(name, str) else ""
    return value


async def decode(body: bytes, media_type: str) -> Decoded:
    """JSON, YAML or protobuf; what is large in a thread, so that others get their turn.

    Raises StatusError BadRequest, UnsupportedMediaType.
    """
    if len(body) < THREADED_FROM:
        return _decode(body, media_type)
    return await asyncio.to_thread(_decode, body, media_type)


def _decode(body: bytes, media_type: str) -> Decoded:
    if media_type == protobuf.MEDIA_TYPE:
        return Decoded(protobuf.decode(body))
    return codec.decode(body, media_type)


def media_type_of(request: Request) -> str:
    return request.header(b"content-type").partition(";")[0].strip().lower() or "application/json"


def report_duplicates(request: Request, resource: Resource, paths: list[str], validation: str) -> None:
    """A key given twice is an error or a warning, as fieldValidation says."""
    if not paths or validation == "Ignore":
        return
    texts = [f'duplicate field "{path[:300]}"' for path in paths[:50]]
    if validation == "Strict":
        where = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
        raise StatusError("BadRequest", f"{where}: strict decoding error: {', '.join(texts)}")
    request.warnings += texts


def _check_kind(value: dict[str, Any], resource: Resource) -> None:
    version, kind = value.get("apiVersion"), value.get("kind")
    if version in (None, ""):
        value["apiVersion"] = resource.api_version
    if kind in (None, ""):
        value["kind"] = resource.kind
    if value["apiVersion"] != resource.api_version or value["kind"] != resource.kind:
        raise StatusError(
            "BadRequest",
            f"the object provided is {str(kind)[:100]!r} of {str(version)[:100]!r}; "
            f"this URL takes {resource.kind} of {resource.api_version}",
        )


def check_name(value: dict[str, Any], request: Request, resource: Resource) -> None:
    """Name and namespace in the object must be those of the URL; missing ones are filled in."""
    route = request.route
    meta = value.setdefault("metadata", {})
    if not isinstance(meta, dict):
        raise StatusError("BadRequest", "metadata must be an object")
    if resource.namespaced:
        if meta.get("namespace") in (None, ""):
            meta["namespace"] = route.namespace
        elif meta["namespace"] != route.namespace:
            raise StatusError(
                "BadRequest", "the namespace of the provided object does not match the namespace sent on the request"
            )
    elif meta.get("namespace") not in (None, ""):
        raise StatusError("BadRequest", f"{resource.kind} is cluster-scoped; metadata.namespace must be empty")
    if route.name:
        if meta.get("name") in (None, ""):
            meta["name"] = route.name
        elif meta["name"] != route.name:
            raise StatusError(
                "BadRequest",
                f"the name of the object ({str(meta['name'])[:253]}) does not match the name on the URL ({route.name})",
            )
