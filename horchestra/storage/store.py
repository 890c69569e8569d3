"""The one door to the data: every write of kubectl, dashboard, agents and controllers goes through here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from horchestra.apimachinery.meta import APIObject
from horchestra.apimachinery.registry import Registry

from .options import DeleteOptions, WriteOptions, Written
from .transaction import Transaction
from .watch import WatchCache

__all__ = ["DeleteOptions", "Store", "WriteOptions", "Written"]

T = TypeVar("T")


class Store:
    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.watch = WatchCache()

    async def start(self) -> None:
        """Fills memory from the migrated database and starts the writer."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    @property
    def lineage(self) -> str:
        raise NotImplementedError

    async def create(self, cls: type[APIObject], obj: dict[str, Any], options: WriteOptions) -> Written:
        raise NotImplementedError

    async def update(
        self,
        cls: type[APIObject],
        namespace: str,
        name: str,
        change: Callable[[dict[str, Any]], dict[str, Any]],
        options: WriteOptions,
        *,
        subresource: str = "",
    ) -> Written:
        raise NotImplementedError

    async def delete(self, cls: type[APIObject], namespace: str, name: str, options: DeleteOptions) -> Written:
        raise NotImplementedError

    async def transaction(self, fn: Callable[[Transaction], T]) -> T:
        raise NotImplementedError
