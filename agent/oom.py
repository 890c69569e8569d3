"""Notices that the kernel killed for memory under cgroup v1, where systemd cannot tell it from any other SIGKILL.

Source: Documentation/admin-guide/cgroup-v1/memory.rst, "OOM Control": an eventfd is signalled when the group runs out
of memory, and once more when the group is removed. Under cgroup v2 systemd says oom-kill itself; nothing is watched.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

_MEMORY = Path("/sys/fs/cgroup/memory")


class MemoryWatch:
    """Watches one control group. `fired` is called on the event loop, at most once."""

    def __init__(self, control_group: str, fired: Callable[[], None]) -> None:
        self._group = _MEMORY / control_group.lstrip("/")
        self._fired = fired
        self._event = -1
        self._control = -1
        with contextlib.suppress(OSError):  # no such hierarchy, or the process is gone already
            self._begin()

    def _begin(self) -> None:
        self._control = os.open(self._group / "memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            (self._group / "cgroup.event_control").write_text(f"{self._event} {self._control}")
        except OSError:
            self.close()
            return
        asyncio.get_running_loop().add_reader(self._event, self._read)

    def _read(self) -> None:
        try:
            signals = os.eventfd_read(self._event)
        except OSError:
            return
        removed = not self._group.exists()
        self.close()
        if signals > 1 or not removed:
            self._fired()

    def close(self) -> None:
        if self._event >= 0:
            asyncio.get_running_loop().remove_reader(self._event)
            os.close(self._event)
        if self._control >= 0:
            os.close(self._control)
        self._event = self._control = -1
