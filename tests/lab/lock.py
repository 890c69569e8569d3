"""File locks between runs of the lab that share one cache; the kernel drops them when the holder dies."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold `path` exclusively while the block runs; waits for another holder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def try_hold(path: Path) -> int | None:
    """Take `path` for the life of this process. Returns the open descriptor, or None if someone alive holds it.

    The descriptor is close-on-exec, so children of the lab do not keep a dead owner's lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
