"""What a read's resourceVersion asks for, and waiting until memory can give it."""

from __future__ import annotations

import asyncio

from horchestra.apimachinery.errors import Cause, StatusError
from horchestra.storage.watch import WatchCache

from .request import Request

PATIENCE = 3.0
"""Seconds a read waits for a revision that memory has not reached (as in Kubernetes)."""
MATCHES = frozenset(("", "Exact", "NotOlderThan"))


def revision(request: Request) -> int | None:
    """The resourceVersion parameter: None when absent. Raises StatusError BadRequest when it is not a number."""
    text = request.param("resourceVersion")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise StatusError("BadRequest", f'Invalid value: "{text}": resourceVersion must be a number')
    return int(text)


def forbidden(field: str, why: str) -> StatusError:
    """A combination of list or watch parameters that makes no sense."""
    cause = Cause("FieldValueForbidden", f"Forbidden: {why}", field)
    return StatusError("Invalid", f'ListOptions.meta.k8s.io "" is invalid: {field}: {cause.message}', causes=[cause])


def match(request: Request) -> str:
    """The resourceVersionMatch of a list. Raises StatusError."""
    text = request.param("resourceVersionMatch")
    if text not in MATCHES:
        raise forbidden("resourceVersionMatch", f'"{text}" is not supported; use Exact or NotOlderThan')
    if not text:
        return ""
    if not request.param("resourceVersion"):
        raise forbidden("resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided")
    if request.param("continue"):
        raise forbidden("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided")
    if text == "Exact" and request.param("resourceVersion") == "0":
        raise forbidden("resourceVersionMatch", 'resourceVersionMatch "Exact" is forbidden for resourceVersion "0"')
    return text


async def reached(cache: WatchCache, wanted: int | None) -> int:
    """Waits until memory is as fresh as a read needs it: None = everything committed before now, 0 = whatever is
    there, else at least that revision. Returns the revision of memory.

    Raises StatusError Timeout for a revision that does not come within three seconds.
    """
    if wanted is None:
        return await cache.caught_up()
    if wanted <= cache.revision:
        return cache.revision
    news = cache.subscribe(None)
    try:
        async with asyncio.timeout(PATIENCE):
            await cache.caught_up()
            while cache.revision < wanted:
                await news.next_batch()
    except TimeoutError:
        causes = [Cause("ResourceVersionTooLarge", "Too large resource version")]
        message = f"Too large resource version: {wanted}, current: {cache.revision}"
        raise StatusError("Timeout", message, causes=causes, retry_after=1) from None
    finally:
        news.close()
    return cache.revision


def no_longer(wanted: int | None) -> StatusError:
    """An exact revision of a list that only history has."""
    return StatusError("Expired", f"The resourceVersion for the provided list is too old: {wanted}")
