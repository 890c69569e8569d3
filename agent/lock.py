"""One agent per state directory: `agent.lock`, flock(2), held until the process ends. It names its holder's pid."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from .errors import AgentError

NAME = "agent.lock"
_WIDTH = 11
"""Bytes of a padded pid and a newline: overwriting them in place needs no space on a full disk."""


def take(state: Path) -> int:
    """The locked descriptor. Whoever wants the lock for the life of the process never closes it; children do not
    inherit it.

    Raises AgentError AlreadyRunning when another agent holds it, StateUnusable when the file cannot be opened.
    """
    path = state / NAME
    try:
        state.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise AgentError("StateUnusable", f"cannot open {path}: {error.strerror}; run it as root") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise AgentError("StateUnusable", f"cannot lock {path}: {error.strerror}") from error
        pid = _written(path)
        who = f"an agent with pid {pid}" if pid else "an agent"
        raise AgentError(
            "AlreadyRunning", f"{who} already runs with {state}: stop it before you start another (systemctl stop "
            "horchestra-agent)"
        ) from error  # fmt: skip
    with suppress(OSError):  # a disk that is full must not stop the agent; the lock holds without a name in it
        os.pwrite(descriptor, f"{os.getpid():<{_WIDTH - 1}}\n".encode(), 0)
    return descriptor


def holder(state: Path) -> int | None:
    """Pid of the agent that runs with `state`. Looks only: trying the lock could refuse an agent that starts now."""
    path = state / NAME
    pid = _written(path)
    if pid is None:
        return None
    try:
        lock = path.stat()
        opened = list(Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:
        return None
    except PermissionError:
        return pid
    for link in opened:  # the pid may be another process's by now: the agent is the one that has the file open
        with suppress(OSError):
            if os.path.samestat(link.stat(), lock):
                return pid
    return None


def _written(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
