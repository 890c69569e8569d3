"""OpenAPI v3: an index of hashed URLs and one document for each group and version."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from horchestra.apimachinery import codec, schema
from horchestra.apimachinery.meta import APIObject
from horchestra.apimachinery.registry import Registry

from .discovery import conditional
from .request import Request
from .response import Response, gzip
from .view import views

INDEX = "/openapi/v3"
_IMMUTABLE = [
    (b"cache-control", b"public, immutable"),
    (b"expires", b"Fri, 31 Dec 2100 00:00:00 GMT"),
]


def answer(path: str, registry: Registry, request: Request) -> Response | None:
    """The index, a document, or None when there is nothing at this path."""
    documents = _documents(tuple(view.shown for view in views(registry)))
    if path == INDEX:
        paths = {
            name: {"serverRelativeURL": f"{INDEX}/{name}?hash={digest}"} for name, (digest, _, _) in documents.items()
        }
        return conditional(request, Response(codec.encode({"paths": paths})))
    found = documents.get(path.removeprefix(INDEX + "/"))
    if found is None:
        return None
    digest, body, compressed = found
    cached = _IMMUTABLE if request.param("hash") == digest else []
    response = conditional(request, Response(body, headers=[*cached, (b"vary", b"Accept-Encoding")]))
    if response.code == 200 and "gzip" in request.header(b"accept-encoding"):
        response.body = compressed
        response.headers.append((b"content-encoding", b"gzip"))
    return response


@lru_cache(maxsize=4)
def _documents(kinds: tuple[type[APIObject], ...]) -> dict[str, tuple[str, bytes, bytes]]:
    """Name in the index -> (hash, document, the same compressed)."""
    registry = Registry()
    for kind in kinds:
        registry.add(kind)
    made = {}
    for (group, version), document in schema.openapi(registry).items():
        body = codec.encode(document)
        name = f"apis/{group}/{version}" if group else f"api/{version}"
        made[name] = (hashlib.sha256(body).hexdigest()[:32].upper(), body, gzip(body))
    return made
