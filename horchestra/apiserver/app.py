"""The API door as a raw ASGI application: who asks, for what, may they, and the answer."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horchestra.apimachinery import codec
from horchestra.apimachinery.admission import User
from horchestra.apimachinery.errors import StatusError
from horchestra.apimachinery.registry import Resource
from horchestra.audit.log import AuditRecord
from horchestra.authn import certificate
from horchestra.authz.authorizer import Attributes, Authorizer, denial
from horchestra.storage.store import Store

from . import discovery, health, openapi, response, reviews
from .exchange import Receive, Scope, Send
from .metrics import requests
from .reading import VARY, Reader
from .request import TRUE, Request, header_map, parse_query
from .response import Headers, Response, Stream
from .routes import Route, parse
from .streams import NOT_SERVED, Streams
from .view import View, view
from .watching import Watcher
from .writing import Writer

if TYPE_CHECKING:
    from horchestra.nodes.sessions import Sessions

log = logging.getLogger(__name__)

ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))
STREAMS_PER_USER = 20
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
MUTATIONS = frozenset(("create", "update", "patch", "delete", "deletecollection"))
_WRITE_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_CACHE_CONTROL = (b"cache-control", b"no-cache, private")
_ONE_NAME = re.compile(r"metadata\.name==?([a-z0-9.-]+)")
_EMPTY_LIST = {"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "0"}, "items": []}


@dataclass(slots=True)
class Call:
    """What is known of a request so far, for metrics and audit."""

    id: str
    scope: Scope
    headers: dict[bytes, bytes]
    attributes: Attributes = Attributes(ANONYMOUS, "")  # noqa: RUF009  # frozen
    request: Request | None = None
    served: bool = False
    """It names a resource that exists: only then do its names become labels of metrics."""


class APIServer:
    """`audit` receives one record for every mutation and every denial."""

    def __init__(
        self,
        store: Store,
        authorizer: Authorizer,
        audit: Callable[[AuditRecord], None],
        sessions: Sessions,
        *,
        streams_per_user: int = STREAMS_PER_USER,
    ) -> None:
        self._store = store
        self._authorizer = authorizer
        self._audit = audit
        self._reader = Reader(store.watch)
        self._writer = Writer(store, self._reader)
        self._watcher = Watcher(store.watch)
        self._streams = Streams(store.watch, sessions, streams_per_user)
        self._closing = False

    def close(self) -> None:
        """Readiness fails, watches and log streams end; requests under way are answered."""
        self._closing = True
        self._watcher.close()
        self._streams.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"nothing here speaks {scope['type']}")
        call = Call(_request_id(), scope, header_map(scope["headers"]))
        try:
            result = await self._handle(call, receive)
        except StatusError as error:
            result = response.failure(error)
        except ConnectionError:
            raise
        except asyncio.CancelledError:
            self._account(call, Response(code=500, reason="Cancelled"))  # what it began may still be done
            raise
        except Exception:
            log.exception("request %s failed: %s %s", call.id, scope["method"], scope["path"])
            result = response.failure(
                StatusError("InternalError", f"Internal error; the log has it as request {call.id}")
            )
        self._account(call, result)
        extra: Headers = [(b"audit-id", call.id.encode())]
        if not any(name == b"cache-control" for name, _ in result.headers):
            extra.append(_CACHE_CONTROL)
        if call.request is not None and call.request.warnings:
            extra.extend(response.warning_headers(call.request.warnings))
        if isinstance(result, Stream):
            await response.stream(result, extra, send)
        else:
            await response.send(result, extra, b"gzip" in call.headers.get(b"accept-encoding", b""), send)

    async def _handle(self, call: Call, receive: Receive) -> Response | Stream:
        scope = call.scope
        user, expires = _identity(scope)
        call.attributes = Attributes(user, scope["method"].lower(), path=scope["path"])
        try:
            route = parse(scope["raw_path"])
            query = parse_query(scope["query_string"])
        except StatusError:
            if user is ANONYMOUS:
                raise _unauthorized() from None
            raise
        if user is not ANONYMOUS:
            _refuse_strangers(scope["method"], call.headers)
        request = call.request = Request(
            call.id, scope["method"], route, user, call.headers, query, scope, receive, expires
        )
        if not route.plural:
            return await self._path(call, request)
        found = view(self._store.registry, route.group, route.version, route.plural)
        if found is not None:
            return await self._resource(call, request, found)
        return await self._special(call, request)

    # What is not a resource

    async def _path(self, call: Call, request: Request) -> Response:
        path = request.route.path
        verb = "get" if request.method == "GET" else request.method.lower()
        self._authorize(call, request, Attributes(request.user, verb, path=path))
        found = await health.health(path, self._store, self._closing)
        found = found or discovery.answer(path, self._store.registry, request)
        found = found or openapi.answer(path, self._store.registry, request)
        if found is None:
            raise _no_such_path()
        if verb != "get":
            raise _not_allowed()
        return found

    # Resources that are not stored

    async def _special(self, call: Call, request: Request) -> Response:
        route = request.route
        key = (route.group, route.version, route.plural)
        if key in reviews.ROUTES and not route.name and not route.namespace:
            call.served = True
            self._authorize(call, request, _attributes(request, "create" if request.method == "POST" else "get"))
            return await reviews.review(request, self._authorizer)
        services = discovery.SERVICES
        if key == (services.group, services.version, services.plural) and not route.name:
            call.served = True
            self._authorize(call, request, _attributes(request, "list"))
            if request.method != "GET" or request.param("watch") in TRUE:
                raise _not_allowed()
            return Response(codec.encode(_EMPTY_LIST), headers=[VARY])
        self._known(request)
        raise _no_such_path()

    # Resources

    async def _resource(self, call: Call, request: Request, found: View) -> Response | Stream:
        route, resource = request.route, found.resource
        verb = _verb(request)
        self._known(request)
        if not _fits(route, resource):
            raise _no_such_path()
        if route.subresource:
            return await self._subresource(call, request, found, verb)
        call.served = True
        self._authorize(call, request, _attributes(request, verb))
        if verb not in resource.verbs or (verb == "create" and route.name):
            raise _not_allowed(_why_not(found))
        match verb:
            case "get":
                return await self._reader.get(found, request)
            case "list":
                return await self._reader.list(found, request)
            case "watch":
                return await self._watcher.watch(found, request)
            case "create":
                return await self._writer.create(found, request)
            case "update":
                return await self._writer.update(found, request)
            case "patch":
                return await self._writer.patch(found, request)
            case "delete":
                return await self._writer.delete(found, request)
        return await self._writer.delete_collection(found, request)

    async def _subresource(self, call: Call, request: Request, found: View, verb: str) -> Response | Stream:
        resource, subresource = found.resource, request.route.subresource
        is_pod = found.project is not None
        if is_pod and subresource in NOT_SERVED:
            self._authorize(call, request, _attributes(request, "create"))
            raise StatusError("NotImplemented", f"pods/{subresource} is not served by this version")
        if is_pod and subresource == "log":
            call.served = True
            self._authorize(call, request, _attributes(request, verb))
            if verb != "get":
                raise _not_allowed()
            return await self._streams.logs(found, request)
        if subresource != "status" or not resource.status:
            raise _no_such_path()
        call.served = True
        self._authorize(call, request, _attributes(request, verb))
        match verb:
            case "get":
                return await self._reader.get(found, request)
            case "update":
                return await self._writer.update(found, request)
            case "patch":
                return await self._writer.patch(found, request)
        raise _not_allowed()

    # Access and accounts

    def _known(self, request: Request) -> None:
        """Who is nobody learns nothing of what exists."""
        if request.user is ANONYMOUS:
            raise _unauthorized()

    def _authorize(self, call: Call, request: Request, attributes: Attributes) -> None:
        """Raises StatusError Unauthorized, Forbidden."""
        call.attributes = attributes
        decision = self._authorizer.authorize(attributes)
        if decision.allowed:
            request.withdrawn = decision.withdrawn
            return
        if request.user is ANONYMOUS:
            raise _unauthorized()
        text = denial(attributes, decision)
        what = ""
        if attributes.resource:
            what = f"{attributes.resource}.{attributes.group}" if attributes.group else attributes.resource
            what += f' "{attributes.name}"' if attributes.name else ""
            what += " is forbidden: "
        raise StatusError(
            "Forbidden",
            f"{what}{text}" if what else f"forbidden: {text}",
            group=attributes.group,
            kind=attributes.resource,
            name=attributes.name,
        )

    def _account(self, call: Call, result: Response | Stream) -> None:
        a = call.attributes
        code = result.code if isinstance(result, Response) else 200
        group, resource = (a.group, a.resource) if call.served else ("", "")
        requests(a.verb, group, resource, code).inc()
        if a.verb not in MUTATIONS and code not in (401, 403):
            return
        client = call.scope["client"]
        self._audit(
            AuditRecord(
                request_id=call.id,
                user=a.user.name,
                groups=a.user.groups,
                credential=a.user.credential,
                verb=a.verb,
                group=a.group,
                resource=a.resource,
                subresource=a.subresource,
                namespace=a.namespace,
                name=a.name or (call.request.object_name if call.request else ""),
                path=a.path,
                source=client[0] if client else "",
                code=code,
                reason=result.reason if isinstance(result, Response) else "",
                dry_run=call.request.dry_run if call.request else False,
                agent=call.headers.get(b"user-agent", b"").decode("latin-1")[:200],
            )
        )


def _request_id() -> str:
    """A random UUID (RFC 9562, version 4), as Kubernetes' Audit-Id; the uuid module takes four times as long."""
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def _identity(scope: Scope) -> tuple[User, float | None]:
    """The user and when the proof ends. Raises StatusError Unauthorized for a certificate outside its time."""
    der = scope["extensions"]["tls"]["client_cert_der"]
    if der is None:
        return ANONYMOUS, None
    found = certificate.read(der)
    if not found.not_before <= time.time() <= found.not_after:
        raise StatusError("Unauthorized", "Unauthorized: the client certificate has expired or is not valid yet")
    return found.user, found.not_after


def _refuse_strangers(method: str, headers: dict[bytes, bytes]) -> None:
    """Raises StatusError Forbidden for what must not be done in silence as somebody it does not come from.

    A page of another origin can make a browser send a request with its user's client certificate; and a request to act
    as another user must not be carried out as oneself.
    """
    origin = headers.get(b"origin")
    if origin is not None and method not in SAFE_METHODS and origin.partition(b"://")[2] != headers.get(b"host"):
        raise StatusError("Forbidden", "forbidden: the request comes from a page of another origin")
    for name in headers:
        if name.startswith(b"impersonate-"):
            raise StatusError("Forbidden", "forbidden: impersonation (--as) is not served by this version")


def _verb(request: Request) -> str:
    """The Kubernetes verb of a request for a resource."""
    method, named = request.method, bool(request.route.name)
    if method == "GET":
        if request.query and request.param("watch") in TRUE and not request.route.subresource:
            return "watch"
        return "get" if named else "list"
    if method == "DELETE":
        return "delete" if named else "deletecollection"
    return _WRITE_VERBS.get(method, method.lower())


def _attributes(request: Request, verb: str) -> Attributes:
    route = request.route
    name = route.name
    if not name and request.query and verb in ("list", "watch", "deletecollection"):
        only = _ONE_NAME.fullmatch(request.param("fieldSelector"))
        name = only[1] if only else ""
    return Attributes(request.user, verb, route.group, route.plural, route.subresource, route.namespace, name)


def _fits(route: Route, resource: Resource) -> bool:
    """A path of the right scope: namespaced objects have a namespace, others none."""
    if not resource.namespaced:
        return not route.namespace
    return bool(route.namespace) or not route.name


def _why_not(found: View) -> str:
    if found.project is None:
        return ""
    return "; pods are a read-only picture of Applications: change or delete the Application of the same name"


def _not_allowed(why: str = "") -> StatusError:
    return StatusError("MethodNotAllowed", f"the server does not allow this method on the requested resource{why}")


def _no_such_path() -> StatusError:
    return StatusError("NotFound", "the server could not find the requested resource")


def _unauthorized() -> StatusError:
    return StatusError("Unauthorized", "Unauthorized")
