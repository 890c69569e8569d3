"""`kubectl auth whoami` and `kubectl auth can-i`: what the server takes the caller for, and what they may do."""

from __future__ import annotations

from typing import Any

from horchestra.apimachinery.errors import StatusError
from horchestra.authz.authorizer import Attributes, Authorizer

from .bodies import decode, media_type_of
from .request import Request
from .response import Response, answer

WHOAMI = ("authentication.k8s.io", "v1", "selfsubjectreviews")
CAN_I = ("authorization.k8s.io", "v1", "selfsubjectaccessreviews")
ROUTES = frozenset((WHOAMI, CAN_I))


async def review(request: Request, authorizer: Authorizer) -> Response:
    """Raises StatusError BadRequest, MethodNotAllowed."""
    if request.method != "POST":
        raise StatusError("MethodNotAllowed", f"{request.route.plural} can only be created")
    body = await request.body()
    media_type = media_type_of(request)
    value = (await decode(body, media_type)).value
    if not isinstance(value, dict):
        raise StatusError("BadRequest", "the body must be one object")
    route = request.route
    whoami = (route.group, route.version, route.plural) == WHOAMI
    status = _whoami(request) if whoami else _can_i(value, request, authorizer)
    head = {
        "kind": "SelfSubjectReview" if whoami else "SelfSubjectAccessReview",
        "apiVersion": f"{route.group}/{route.version}",
        "metadata": {"creationTimestamp": None},
    }
    return answer({**head, **({} if whoami else {"spec": value.get("spec", {})}), "status": status}, 201)


def _whoami(request: Request) -> dict[str, Any]:
    user = request.user
    info = {"username": user.name, "uid": user.uid, "groups": list(user.groups)}
    extra = {key: list(values) for key, values in user.extra.items()}
    return {"userInfo": {**{k: v for k, v in info.items() if v}, **({"extra": extra} if extra else {})}}


def _can_i(value: dict[str, Any], request: Request, authorizer: Authorizer) -> dict[str, Any]:
    spec = value.get("spec")
    resource, path = (
        spec.get(k) if isinstance(spec, dict) else None for k in ("resourceAttributes", "nonResourceAttributes")
    )
    asked = resource if isinstance(resource, dict) else path
    if not isinstance(asked, dict) or not all(isinstance(v, (str, dict)) for v in asked.values()):
        raise StatusError("BadRequest", "spec needs resourceAttributes or nonResourceAttributes, all of them text")

    def text(name: str) -> str:
        return str(asked.get(name) or "")

    decision = authorizer.authorize(
        Attributes(
            user=request.user,
            verb=text("verb"),
            group=text("group"),
            resource=text("resource"),
            subresource=text("subresource"),
            namespace=text("namespace"),
            name=text("name"),
            path=text("path") if asked is path else "",
        )
    )
    return {"allowed": decision.allowed, **({"reason": decision.reason} if decision.reason else {})}
