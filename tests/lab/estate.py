"""One run of the lab: everything it makes in the kernel and on disk carries the run's name, so that removing the run,
also one whose owner crashed, needs no record of what was made.

Names: directory `.horchestra/lab/<id>`, network namespaces `hlab-<id>` and `hlab-<id>-<node>`, control groups
`hlab-<id>-<node>` in every hierarchy. The owner holds a lock on `<directory>/owner` while it lives.
"""

import contextlib
import os
import shutil
import signal
import time
import uuid
from pathlib import Path

from tests.lab.command import run
from tests.lab.lock import locked, try_hold
from tests.lab.paths import RUNS

PREFIX = "hlab-"
_GATE = RUNS / "gate.lock"
_ENOUGH_BYTES = 5 << 30


class Estate:
    """The directory and the name of one run. `lasting` estates (the demo's) are removed by name only."""

    def __init__(self, id: str, *, lasting: bool = False) -> None:
        self.id = id
        self.name = PREFIX + id
        self.directory = RUNS / id
        # Whoever removes leftovers must not come between the directory and its lock.
        with locked(_GATE):
            self.directory.mkdir(parents=True, exist_ok=True)
            if lasting:
                (self.directory / "lasting").touch()
            self._owner = try_hold(self.directory / "owner")
        if self._owner is None:
            raise RuntimeError(f"lab {id} is in use by another process; its directory is {self.directory}")

    @classmethod
    def fresh(cls) -> "Estate":
        """A new run with a name of its own, after removing what crashed runs left behind."""
        remove_leftovers()
        return cls(uuid.uuid4().hex[:5])

    def close(self) -> None:
        """Remove the run with everything in it."""
        remove(self.id)
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None

    def discard(self, directory: Path) -> None:
        """Put a directory out of the way, to be deleted with the run; at once if the disk is nearly full.

        ext4 does not reuse an inode in the first minute after its deletion and searches for others, so that a test that
        unpacks an image just after another was cleaned up would take five times as long.
        """
        if shutil.disk_usage(self.directory).free < _ENOUGH_BYTES:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            trash = self.directory / "trash"
            trash.mkdir(exist_ok=True)
            directory.rename(trash / uuid.uuid4().hex)

    def release(self) -> None:
        """Let go of the run but leave it running, for another process to take up by its id."""
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None


def remove_leftovers() -> None:
    """Remove every run whose owner is dead, lasting ones excepted."""
    with locked(_GATE):
        for directory in sorted(RUNS.glob("*/")):
            if (directory / "lasting").exists():
                continue
            # Another process may be removing its own run at this moment.
            with contextlib.suppress(FileNotFoundError):
                held = try_hold(directory / "owner")
                if held is not None:
                    remove(directory.name)
                    os.close(held)


def remove(id: str) -> None:
    """Remove a run by its id: processes, mounts, network namespaces, control groups, directory. Safe to repeat."""
    directory = RUNS / id
    _end_supervisors(directory)
    for namespace in _namespaces(id):
        _end_processes(namespace)
    for mount in _mounts_below(directory):
        run("umount", "--lazy", mount, check=False)
    for namespace in _namespaces(id):
        run("ip", "netns", "delete", namespace, check=False)
    for group in Path("/sys/fs/cgroup").glob(f"*/{PREFIX}{id}-*"):
        _remove_group(group)
    shutil.rmtree(directory, ignore_errors=True)


def _namespaces(id: str) -> list[str]:
    names = [line.split()[0] for line in run("ip", "netns", "list").stdout.splitlines() if line.strip()]
    return [name for name in names if name == PREFIX + id or name.startswith(f"{PREFIX}{id}-")]


def _end_supervisors(directory: Path) -> None:
    """End the loops that would start a node again when its machine dies."""
    for file in directory.glob("nodes/*/supervisor.pid"):
        with contextlib.suppress(ValueError, ProcessLookupError, FileNotFoundError):
            pid = int(file.read_text())
            if str(directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def _end_processes(namespace: str) -> None:
    """Kill what lives in a network namespace, this process excepted, and wait until it is gone (at most 10 s)."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        pids = [int(pid) for pid in run("ip", "netns", "pids", namespace, check=False).stdout.split()]
        others = [pid for pid in pids if pid != os.getpid() and not _is_zombie(pid)]
        if not others:
            return
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _mounts_below(directory: Path) -> list[str]:
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((point for point in points if point.startswith(f"{directory}/")), reverse=True)


def _remove_group(group: Path) -> None:
    """Remove a control group and those below it, deepest first; a dying process may hold one for a moment."""
    deadline = time.monotonic() + 5
    while group.exists():
        for below in sorted((path for path in group.rglob("*/")), reverse=True):
            with contextlib.suppress(OSError):
                below.rmdir()
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
