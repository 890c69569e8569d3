"""Where an application's standard output goes: a FIFO that the log pump (agent/logpump.py) carries to the journal."""

import contextlib
import os
import sys
from pathlib import Path

from agent import durable, logpump
from agent.layout import Layout

UNIT = "horchestra-logs.service"

_UNIT = """# Made by the Horchestra agent; changes are overwritten.
# It needs no capability, but has one that no application is given: whoever has all that a process of the same user has
# may look into it (ptrace(2)), and so reach the host's files through /proc/PID/root.
[Unit]
Description=Horchestra: what applications print, to the journal
StartLimitIntervalSec=0

[Service]
ExecStart={python} -IS {pump} {fifos}
Restart=always
RestartSec=100ms
NotifyAccess=main
FileDescriptorStoreMax=4096
WatchdogSec=30
WatchdogSignal=SIGKILL
LogRateLimitIntervalSec=0
OOMScoreAdjust=-900
Slice=horchestra.slice
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=CAP_LEASE
PrivateNetwork=yes
ProtectHome=yes
RestrictAddressFamilies=AF_UNIX
SystemCallArchitectures=native
"""


def directive(layout: Layout, uid: str) -> str:
    """The value of StandardOutput= of an application."""
    return f"file:{fifo(layout, uid)}".replace("%", "%%")


def fifo(layout: Layout, uid: str) -> Path:
    return directory(layout) / uid


def directory(layout: Layout) -> Path:
    return layout.run / "log"


def install(layout: Layout) -> bool:
    """Put the pump and its unit on the node. True when the unit changed (systemd must reload)."""
    program = layout.starter.with_name("logpump.py")
    durable.write_if_changed(program, Path(logpump.__file__).read_bytes(), 0o644)
    text = _UNIT.format(python=sys.executable, pump=program, fifos=directory(layout))
    return durable.write_if_changed(layout.units / UNIT, text.encode(), 0o644)


def forget(layout: Layout, uid: str) -> None:
    """Remove what belongs to an application, and have the pump close its end."""
    fifo(layout, uid).unlink(missing_ok=True)
    fifo(layout, uid).with_suffix(".unit").unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # ENXIO: no pump is there to be told
        control = os.open(directory(layout) / logpump.CONTROL, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(control, f"{uid}\n".encode())
        finally:
            os.close(control)
