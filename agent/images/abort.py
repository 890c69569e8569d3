"""Stops blocking work in threads: asyncio can cancel an await, but not the thread behind it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from agent.errors import AgentError


class Abort:
    """One switch for all threads of a pull. Once set, waits end, and so do reads: watched sockets are shut down."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()

    def set(self) -> None:
        self._event.set()
        with self._lock:
            for watched in self._sockets:
                _shut(watched)

    def check(self) -> None:
        """Raises AgentError PullCancelled when set."""
        if self._event.is_set():
            raise AgentError("PullCancelled", "the pull was cancelled")

    def wait(self, seconds: float) -> None:
        """Sleeps, or raises AgentError PullCancelled as soon as the switch is set."""
        self._event.wait(seconds)
        self.check()

    @contextmanager
    def watching(self, watched: socket.socket) -> Iterator[None]:
        with self._lock:
            self._sockets.add(watched)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._sockets.discard(watched)


def _shut(watched: socket.socket) -> None:
    # The base class: SSLSocket.shutdown would drop the TLS state under the thread that is reading.
    with suppress(OSError):
        socket.socket.shutdown(watched, socket.SHUT_RDWR)
