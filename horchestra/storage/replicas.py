"""PostgreSQL's word that another replica has committed."""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections.abc import Callable

import psycopg
from django.db import connections

from .database import CHANNEL

log = logging.getLogger(__name__)

_RETRY = 1.0
"""Seconds between attempts to connect."""
_PROBE = 30.0
"""Seconds of silence after which the connection is tried: a dead peer does not say so."""


class Listener:
    """Calls `notified` (in its own thread) with the revision of every commit of any replica, and with None after each
    new connection: something may have been missed."""

    def __init__(self, alias: str, notified: Callable[[int | None], None]) -> None:
        self._alias = alias
        self._notified = notified
        self._stopping = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._main, name="store-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Blocks until the thread has ended."""
        self._stopping.set()
        self._wake.send(b"x")
        self._thread.join()
        self._wake.close()
        self._woken.close()

    def _main(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except psycopg.Error as error:
                log.warning("not notified of other replicas' writes, polling meanwhile: %s", error)
                self._stopping.wait(_RETRY)

    def _listen(self) -> None:
        parameters = connections[self._alias].get_connection_params()
        for unused in ("cursor_factory", "context", "prepare_threshold"):
            parameters.pop(unused, None)
        with psycopg.connect(**parameters, autocommit=True) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            self._notified(None)
            while True:
                readable, _, _ = select.select([connection.fileno(), self._woken.fileno()], [], [], _PROBE)
                if self._woken.fileno() in readable:
                    return
                if not readable:
                    connection.execute("SELECT 1")
                revisions = [int(notify.payload) for notify in connection.notifies(timeout=0)]
                if revisions:
                    self._notified(max(revisions))
