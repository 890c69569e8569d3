"""The API door on a loopback port, and certificates to knock with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from horchestra.apiserver.exchange import ASGIApp
from horchestra.apiserver.listener import Limits, Listener, serve

from .door import Door, opened
from .wire import Certificates, Wire

Serve = Callable[..., Awaitable[Listener]]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(Path(tmp_path_factory.mktemp("certificates")))


@pytest.fixture
async def serving(certificates: Certificates) -> AsyncIterator[Serve]:
    """Serves an ASGI application until the test ends."""
    listeners: list[Listener] = []

    async def start(app: ASGIApp, limits: Limits | None = None) -> Listener:
        listener = await serve(app, "127.0.0.1", 0, certificates.server_context(), limits)
        listeners.append(listener)
        return listener

    yield start
    for listener in listeners:
        listener.close()
        await listener.wait_closed(grace=0.2)


@pytest.fixture
async def door(tmp_path: Path, certificates: Certificates) -> AsyncIterator[Door]:
    async with opened(tmp_path, certificates) as made:
        yield made


@pytest.fixture
async def admin(door: Door) -> Wire:
    """A connection of a member of system:masters."""
    return await door.wire()
