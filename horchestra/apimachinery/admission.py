"""What a kind's hooks are given: who writes, what, and a view of the transaction it happens in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .registry import Resource


class Operation(StrEnum):
    CREATE = "CREATE"
    UPDATE = "UPDATE"
    STATUS = "STATUS"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class User:
    """Who asks. `credential` says how they proved it (a certificate's serial, ...), for audit and revocation."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    credential: str = ""
    extra: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def node(self) -> str | None:
        """The node this identity is, if it is one."""
        return self.name if "system:nodes" in self.groups else None


SYSTEM = User("system:controller", ("system:masters",))
"""The controller itself."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An object that this one names. `namespace` is "" for cluster-scoped targets.

    `holds`: the target, when deleted, stays Terminating until nothing names it; otherwise its deletion only warns.
    `part`: what of the target is wanted, as a port of a node. Such a reference stands beside one to the whole target
    and lets hooks find the few others that want the same.
    """

    target: str
    """Storage key of the target kind: `persistentvolumes.orch.ks-tool.dev`, `secrets`, `nodes`."""
    namespace: str
    name: str
    field: str
    """Path in the naming object: `spec.volumeMounts[0].pv`."""
    holds: bool = False
    part: str = ""


class ReadView(Protocol):
    """Reads inside the writing transaction, earlier ones of its group included. Never change what it returns."""

    def get(self, target: str, namespace: str, name: str) -> dict[str, Any] | None: ...

    def list(self, target: str, namespace: str | None = None) -> Iterable[dict[str, Any]]: ...

    def referrers(self, target: str, namespace: str, name: str, part: str = "") -> Iterable[dict[str, Any]]:
        """Objects whose references() name the target, or a part of it."""
        ...


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """One write, after validation, before it is stored."""

    operation: Operation
    user: User
    resource: Resource
    view: ReadView
    old: dict[str, Any] | None
    dry_run: bool
    warn: Callable[[str], None]
    """Adds a `Warning` header to the answer."""
    store: Callable[[dict[str, Any]], None]
    """Stores a further whole object in the same transaction, replacing one of that name."""
