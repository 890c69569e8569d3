"""PostgreSQL's word that another replica has committed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import psycopg
from django.db import connections

from .database import CHANNEL

log = logging.getLogger(__name__)

_WAIT = 1.0
"""Seconds between looks at whether to stop."""


class Listener:
    """Calls `notified` (in its own thread) after every commit of any replica, and after each new connection."""

    def __init__(self, alias: str, notified: Callable[[], None]) -> None:
        self._alias = alias
        self._notified = notified
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._main, name="store-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def join(self) -> None:
        """Blocks for up to a second after stop()."""
        self._thread.join()

    def _main(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except psycopg.Error as error:
                log.warning("not notified of other replicas' writes, polling meanwhile: %s", error)
                self._stopping.wait(_WAIT)

    def _listen(self) -> None:
        parameters = connections[self._alias].get_connection_params()
        for unused in ("cursor_factory", "context", "prepare_threshold"):
            parameters.pop(unused, None)
        with psycopg.connect(**parameters, autocommit=True) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            self._notified()
            while not self._stopping.is_set():
                if any(True for _ in connection.notifies(timeout=_WAIT, stop_after=1)):
                    self._notified()
