"""Version, liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
import platform

from horchestra.apimachinery.errors import StatusError
from horchestra.storage.store import Store

from . import metrics
from .response import Response, answer

VERSION = {
    "major": "1",
    "minor": "33",
    "gitVersion": "v1.33.0+horchestra",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": f"linux/{ {'x86_64': 'amd64', 'aarch64': 'arm64'}.get(platform.machine(), platform.machine()) }",
}
"""The Kubernetes version whose API this is closest to: kubectl 1.32 to 1.34 find nothing to warn about."""
READY_TIME = 3.0
_TEXT = b"text/plain; charset=utf-8"
LIVE = frozenset(("/livez", "/healthz"))


async def health(path: str, store: Store, closing: bool) -> Response | None:
    """The answer for one of the paths of this module, or None. Raises StatusError ServiceUnavailable when not ready."""
    if path == "/version":
        return answer(VERSION)
    if path in LIVE:
        return Response(b"ok", content_type=_TEXT)
    if path == "/readyz":
        await _ready(store, closing)
        return Response(b"ok", content_type=_TEXT)
    if path == "/metrics":
        return Response(metrics.text(), content_type=metrics.CONTENT_TYPE)
    return None


async def _ready(store: Store, closing: bool) -> None:
    if closing:
        raise StatusError("ServiceUnavailable", "the server is shutting down")
    try:
        async with asyncio.timeout(READY_TIME):
            await store.watch.caught_up()
    except TimeoutError:
        message = f"the database did not answer within {READY_TIME:g} s"
        raise StatusError("ServiceUnavailable", message) from None
