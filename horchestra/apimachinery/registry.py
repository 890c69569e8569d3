"""The kinds being served: what routes, discovery, storage and tables are derived from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import StatusError

if TYPE_CHECKING:
    from .meta import APIObject

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
READ_VERBS = ("get", "list", "watch")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`; `cell` takes the stored JSON. `wide` columns show with `-o wide` only.

    Of type `date` the cell is an RFC 3339 time and shown as the time since then.
    """

    name: str
    cell: Callable[[dict[str, Any]], Any]
    type: str = "string"
    format: str = ""
    description: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind as it is served under /apis/GROUP/VERSION (or /api/v1 when group is "")."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    status: bool = False
    """Has a /status subresource: main writes ignore status, status writes ignore everything else."""
    verbs: tuple[str, ...] = ALL_VERBS
    columns: tuple[Column, ...] = ()
    """Between NAME and AGE, and the wide ones after them."""
    all_columns: bool = False
    """`columns` are all there are, in this order, without NAME and AGE."""
    strategic_merge: bool = False
    """Kubernetes' own shape: strategic merge patches follow its merge keys; on our kinds they are merge patches."""
    encrypted: bool = False
    """Bodies are encrypted at rest."""
    field_selectors: dict[str, str] = field(default_factory=dict)
    """Selector name to dotted JSON path, besides metadata.name and metadata.namespace."""

    api_version: str = field(init=False)
    """`orch.ks-tool.dev/v1`, `v1`"""
    qualified: str = field(init=False)
    """`applications.orch.ks-tool.dev`, `nodes`: the name in messages, and the key in storage."""

    def __post_init__(self) -> None:
        # Made once: each write asks for them a dozen times.
        api_version = f"{self.group}/{self.version}" if self.group else self.version
        object.__setattr__(self, "api_version", api_version)
        object.__setattr__(self, "qualified", f"{self.plural}.{self.group}" if self.group else self.plural)

    def __hash__(self) -> int:
        return hash((self.group, self.version, self.plural))


class Registry:
    """Kinds by route and by kind name. It may gain and lose kinds while running; readers look up, never cache."""

    def __init__(self) -> None:
        self._by_route: dict[tuple[str, str, str], type[APIObject]] = {}

    def add(self, cls: type[APIObject]) -> None:
        r = cls.resource
        self._by_route[r.group, r.version, r.plural] = cls

    def remove(self, cls: type[APIObject]) -> None:
        r = cls.resource
        del self._by_route[r.group, r.version, r.plural]

    def __iter__(self) -> Iterator[type[APIObject]]:
        return iter(tuple(self._by_route.values()))

    def resources(self) -> list[Resource]:
        return [cls.resource for cls in self]

    def route(self, group: str, version: str, plural: str) -> type[APIObject] | None:
        return self._by_route.get((group, version, plural))

    def kind(self, api_version: str, kind: str) -> type[APIObject]:
        """Raises StatusError BadRequest when nothing serves it."""
        for cls in self:
            if cls.resource.kind == kind and cls.resource.api_version == api_version:
                return cls
        raise StatusError("BadRequest", f'no kind "{kind}" is registered for version "{api_version}"')

    def qualified(self, name: str) -> type[APIObject]:
        """By storage key (`applications.orch.ks-tool.dev`). Raises KeyError."""
        for cls in self:
            if cls.resource.qualified == name:
                return cls
        raise KeyError(name)
