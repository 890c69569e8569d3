"""Discovery: which groups, versions and resources there are, aggregated and in the older lists."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from horchestra.apimachinery import codec
from horchestra.apimachinery.registry import Registry, Resource

from .negotiation import discovery_version
from .request import Request
from .response import Headers, Response
from .view import views

Group = tuple[str, dict[str, list[Resource]]]

SERVICES = Resource("", "v1", "Service", "services", "service", verbs=("get", "list"), short_names=("svc",))
"""Always empty; `kubectl cluster-info` looks for it."""
_REVIEWS = (
    Resource(
        "authentication.k8s.io",
        "v1",
        "SelfSubjectReview",
        "selfsubjectreviews",
        "selfsubjectreview",
        namespaced=False,
        verbs=("create",),
    ),
    Resource(
        "authorization.k8s.io",
        "v1",
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        namespaced=False,
        verbs=("create",),
    ),
)
_SUBRESOURCE_VERBS = ("get", "patch", "update")
POD_SUBRESOURCES: dict[str, tuple[str, ...]] = {"log": ("get",)}


def resources(registry: Registry) -> tuple[Resource, ...]:
    """Everything that has a URL, core kinds first: their short names win over those of other groups."""
    served = [view.resource for view in views(registry)]
    core = [r for r in served if not r.group]
    return (*core, SERVICES, *(r for r in served if r.group), *_REVIEWS)


def answer(path: str, registry: Registry, request: Request) -> Response | None:
    """The document at this path, or None when it is no discovery path."""
    served = resources(registry)
    version = discovery_version(request.header(b"accept"))
    if path in ("/api", "/apis"):
        body, media_type = _roots(path, served, version)
    else:
        found = _resource_list(path, served)
        if found is None:
            return None
        body, media_type = found, b"application/json"
    return conditional(request, Response(body, content_type=media_type, headers=[(b"vary", b"Accept")]))


def conditional(request: Request, response: Response) -> Response:
    """Adds an ETag, and answers 304 when the client has just that."""
    body = response.body if isinstance(response.body, bytes) else b"".join(response.body)
    tag = etag(body)
    headers: Headers = [*response.headers, (b"etag", tag)]
    known = [t.strip().removeprefix(b"W/") for t in request.headers.get(b"if-none-match", b"").split(b",")]
    if tag in known or b"*" in known:
        return Response(code=304, content_type=response.content_type, headers=headers)
    return Response(body, content_type=response.content_type, headers=headers)


@lru_cache(maxsize=64)
def etag(body: bytes) -> bytes:
    return b'"%b"' % hashlib.sha256(body).hexdigest()[:32].upper().encode()


@lru_cache(maxsize=32)
def _roots(path: str, served: tuple[Resource, ...], version: str) -> tuple[bytes, bytes]:
    groups = [g for g in _groups(served) if (g[0] == "") == (path == "/api")]
    if version:
        kind = f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
        document = {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": f"apidiscovery.k8s.io/{version}",
            "metadata": {},
            "items": [_aggregated(name, versions) for name, versions in groups],
        }
        return codec.encode(document), kind.encode()
    if path == "/api":
        versions = [version for _, by_version in groups for version in by_version]
        legacy: dict[str, Any] = {"kind": "APIVersions", "versions": versions, "serverAddressByClientCIDRs": []}
    else:
        legacy = {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_legacy_group(*group) for group in groups]}
    return codec.encode(legacy), b"application/json"


@lru_cache(maxsize=64)
def _resource_list(path: str, served: tuple[Resource, ...]) -> bytes | None:
    for name, versions in _groups(served):
        if name and path == f"/apis/{name}":
            return codec.encode({"kind": "APIGroup", "apiVersion": "v1", **_legacy_group(name, versions)})
        for version, members in versions.items():
            if path == (f"/apis/{name}/{version}" if name else f"/api/{version}"):
                document = {
                    "kind": "APIResourceList",
                    "apiVersion": "v1",
                    "groupVersion": f"{name}/{version}" if name else version,
                    "resources": [entry for r in members for entry in _legacy_resources(r)],
                }
                return codec.encode(document)
    return None


def _groups(served: Iterable[Resource]) -> list[Group]:
    found: dict[str, dict[str, list[Resource]]] = {}
    for resource in served:
        found.setdefault(resource.group, {}).setdefault(resource.version, []).append(resource)
    return list(found.items())


def _subresources(resource: Resource) -> dict[str, tuple[str, ...]]:
    if (resource.group, resource.plural) == ("", "pods"):
        return POD_SUBRESOURCES
    return {"status": _SUBRESOURCE_VERBS} if resource.status else {}


def _aggregated(name: str, versions: dict[str, list[Resource]]) -> dict[str, Any]:
    return {
        "metadata": {**({"name": name} if name else {}), "creationTimestamp": None},
        "versions": [
            {"version": version, "freshness": "Current", "resources": [_aggregated_resource(r) for r in members]}
            for version, members in versions.items()
        ],
    }


def _aggregated_resource(resource: Resource) -> dict[str, Any]:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    subresources = [
        {"subresource": name, "responseKind": kind, "verbs": list(verbs)}
        for name, verbs in _subresources(resource).items()
    ]
    return {
        "resource": resource.plural,
        "responseKind": kind,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        **({"shortNames": list(resource.short_names)} if resource.short_names else {}),
        **({"categories": list(resource.categories)} if resource.categories else {}),
        "verbs": list(resource.verbs),
        **({"subresources": subresources} if subresources else {}),
    }


def _legacy_group(name: str, versions: dict[str, list[Resource]]) -> dict[str, Any]:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _legacy_resources(resource: Resource) -> Iterable[dict[str, Any]]:
    yield {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
        **({"shortNames": list(resource.short_names)} if resource.short_names else {}),
        **({"categories": list(resource.categories)} if resource.categories else {}),
    }
    for name, verbs in _subresources(resource).items():
        yield {
            "name": f"{resource.plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(verbs),
        }
