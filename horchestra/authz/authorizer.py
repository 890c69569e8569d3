"""May this user do that? One question for every door, so that roles can come behind it without touching the doors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from horchestra.apimachinery.admission import User
from horchestra.authn.certificate import AUTHENTICATED

MASTERS = "system:masters"
NODES = "system:nodes"
PUBLIC_PATHS = frozenset(("/healthz", "/livez", "/readyz", "/version"))
"""Open to everyone, as Kubernetes' role system:public-info-viewer has it."""
DISCOVERY_PREFIXES = ("/api", "/apis", "/openapi", "/version", "/livez", "/readyz", "/healthz")
REVIEWS = frozenset(
    (("authentication.k8s.io", "selfsubjectreviews"), ("authorization.k8s.io", "selfsubjectaccessreviews"))
)
"""What everybody may ask about themselves."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """One action. `path` is set, and the resource fields are empty, for what is not a resource (/metrics, /version)."""

    user: User
    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


class Signal:
    """Fires once. Only the event loop touches it."""

    __slots__ = ("_callbacks", "fired")

    def __init__(self) -> None:
        self.fired = False
        self._callbacks: set[Callable[[], None]] = set()

    def fire(self) -> None:
        self.fired = True
        callbacks, self._callbacks = self._callbacks, set()
        for callback in callbacks:
            callback()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` when it fires, at once if it has. Returns how to take that back."""
        if self.fired:
            callback()
            return lambda: None
        self._callbacks.add(callback)
        return lambda: self._callbacks.discard(callback)


NEVER = Signal()
"""For decisions that hold as long as the identity does."""


@dataclass(frozen=True, slots=True)
class Decision:
    allowed: bool
    reason: str = ""
    withdrawn: Signal = field(default=NEVER, compare=False)
    """Fires when the decision no longer holds; what still runs because of it must end."""


_MASTER = Decision(True, "member of system:masters")
_PUBLIC = Decision(True, "open to every authenticated user")
_OWN_NODE = Decision(True, "a node may see and report its own Node object")
_DENIED = Decision(False)


class Authorizer:
    """system:masters may do all, a node its own, everybody else may look at what is served and at themselves."""

    def authorize(self, attributes: Attributes) -> Decision:
        user = attributes.user
        if MASTERS in user.groups:
            return _MASTER
        if AUTHENTICATED not in user.groups:
            return _PUBLIC if attributes.verb == "get" and attributes.path in PUBLIC_PATHS else _DENIED
        if attributes.path:
            return _PUBLIC if attributes.verb == "get" and _is_discovery(attributes.path) else _DENIED
        if attributes.verb == "create" and (attributes.group, attributes.resource) in REVIEWS:
            return _PUBLIC
        if NODES in user.groups:
            return _node(user.name, attributes)
        return _DENIED


def _is_discovery(path: str) -> bool:
    return any(path == prefix or path.startswith(prefix + "/") for prefix in DISCOVERY_PREFIXES)


def _node(name: str, attributes: Attributes) -> Decision:
    if (attributes.group, attributes.resource) != ("", "nodes"):
        return Decision(False, "nodes learn of their applications through their session")
    if attributes.name != name:
        return Decision(False, f'node "{name}" may only use its own Node object')
    if attributes.subresource == "" and attributes.verb in ("get", "list", "watch"):
        return _OWN_NODE
    if attributes.subresource == "status" and attributes.verb in ("get", "update", "patch"):
        return _OWN_NODE
    return Decision(False, "a node may write only the status of its Node object")


def denial(attributes: Attributes, decision: Decision) -> str:
    """The sentence Kubernetes uses, and the reason where there is one."""
    user, verb = attributes.user.name, attributes.verb
    if attributes.path:
        text = f'User "{user}" cannot {verb} path "{attributes.path}"'
    else:
        resource = "/".join(filter(None, (attributes.resource, attributes.subresource)))
        text = f'User "{user}" cannot {verb} resource "{resource}" in API group "{attributes.group}"'
        text += f' in the namespace "{attributes.namespace}"' if attributes.namespace else " at the cluster scope"
    return f"{text}: {decision.reason}" if decision.reason else text
