"""A background process that outlives the command which started it, known by its pid file."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.lab.server import Server


class Daemon:
    """`<directory>/<name>.pid` and `.log`; `mark`, a word of its command line, tells it from another with its pid."""

    def __init__(self, directory: Path, name: str, mark: str) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._pid_file = directory / f"{name}.pid"
        self._mark = mark.encode()

    @property
    def pid(self) -> int | None:
        """The pid if it runs."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            pid = int(self._pid_file.read_text())
            if self._mark in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None

    def start(
        self, argv: Sequence[str | Path], ready: Callable[[], bool], env: Mapping[str, str] | None = None
    ) -> None:
        """Start it unless it runs, and wait until it is ready. Raises RuntimeError with the end of its log."""
        if self.pid is None:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            server = Server(self.name, argv, self.log, detached=True, env=env)
            self._pid_file.write_text(str(server.pid))
            server.wait_until(ready, timeout=60)

    def stop(self) -> None:
        """SIGTERM, after 15 s SIGKILL; returns when it is gone."""
        for number, patience in ((signal.SIGTERM, 15), (signal.SIGKILL, 5)):
            pid, deadline = self.pid, time.monotonic() + patience
            if pid is not None:
                os.kill(pid, number)
            while self.pid is not None and time.monotonic() < deadline:
                time.sleep(0.05)
        self._pid_file.unlink(missing_ok=True)
