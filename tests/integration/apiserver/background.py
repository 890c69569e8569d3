"""The API door on an event loop of its own thread, for tests that block: kubectl, the Python client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from .door import Door, opened
from .wire import Certificates

T = TypeVar("T")


class Background:
    """`door` lives on another thread's loop: reach it through `run`."""

    def __init__(self, door: Door, loop: asyncio.AbstractEventLoop) -> None:
        self.door = door
        self.kubeconfig = door.kubeconfig()
        self._loop = loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)


@contextmanager
def background(directory: Path) -> Iterator[Background]:
    ready: list[Background] = []
    started, failed = threading.Event(), []
    stop: list[asyncio.Event] = []

    async def live() -> None:
        async with opened(directory, Certificates.make(directory)) as door:
            stop.append(asyncio.Event())
            ready.append(Background(door, asyncio.get_running_loop()))
            started.set()
            await stop[0].wait()

    def main() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=main, name="door")
    thread.start()
    started.wait(30)
    if failed:
        raise failed[0]
    try:
        yield ready[0]
    finally:
        ready[0]._loop.call_soon_threadsafe(stop[0].set)
        thread.join(20)
        if failed:
            raise failed[0]
