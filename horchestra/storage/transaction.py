"""Several writes that become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from horchestra.apimachinery.meta import APIObject

from .options import DeleteOptions, WriteOptions, Written


class Transaction:
    """Handed to the function given to `Store.transaction`, in the writer's thread."""

    def create(self, cls: type[APIObject], obj: dict[str, Any], options: WriteOptions) -> Written:
        raise NotImplementedError

    def update(
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

    def delete(self, cls: type[APIObject], namespace: str, name: str, options: DeleteOptions) -> Written:
        raise NotImplementedError

    def get(self, target: str, namespace: str, name: str) -> dict[str, Any] | None:
        raise NotImplementedError

    def list(self, target: str, namespace: str | None = None) -> Iterable[dict[str, Any]]:
        raise NotImplementedError

    def referrers(self, target: str, namespace: str, name: str) -> Iterable[dict[str, Any]]:
        raise NotImplementedError
