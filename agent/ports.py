"""Who listens on a port of this host: read from /proc, so that a conflict can be named instead of guessed."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_LISTEN, _UDP_BOUND = "0A", "07"  # states in /proc/net (include/net/tcp_states.h)
_TABLES = {"TCP": (("tcp", "tcp6"), _LISTEN), "UDP": (("udp", "udp6"), _UDP_BOUND)}


@dataclass(frozen=True, slots=True)
class Listener:
    """pid 0: the holder could not be found (another user's namespace, or it ended meanwhile)."""

    port: int
    protocol: str
    pid: int = 0
    command: str = ""
    unit: str = ""

    def __str__(self) -> str:
        if not self.pid:
            return f"{self.port}/{self.protocol} is held by an unknown process"
        return f"{self.port}/{self.protocol} is held by pid {self.pid} ({self.unit or self.command})"


def listeners(ports: Iterable[tuple[int, str]], proc: Path = Path("/proc")) -> list[Listener]:
    """Those of (port, TCP|UDP) that somebody holds. Blocks for the time of a walk through /proc when one is held."""
    wanted = set(ports)
    inodes: dict[str, tuple[int, str]] = {}
    for protocol in {protocol for _, protocol in wanted}:
        tables, state = _TABLES[protocol]
        for table in tables:
            for port, inode in _sockets(proc / "net" / table, state):
                if (port, protocol) in wanted:
                    inodes[inode] = (port, protocol)
    if not inodes:
        return []
    holders = _holders(set(inodes), proc)
    found: dict[tuple[int, str], Listener] = {}
    for inode, (port, protocol) in inodes.items():
        pid = holders.get(inode, 0)
        known = found.get((port, protocol))
        if known is None or (pid and not known.pid):
            found[port, protocol] = Listener(port, protocol, pid, _command(proc, pid), _unit(proc, pid))
    return sorted(found.values(), key=lambda listener: listener.port)


def _sockets(table: Path, state: str) -> Iterable[tuple[int, str]]:
    try:
        lines = table.read_text().splitlines()[1:]
    except FileNotFoundError:
        return
    for line in lines:
        fields = line.split()
        if fields[3] == state:
            yield int(fields[1].rpartition(":")[2], 16), fields[9]


def _holders(inodes: set[str], proc: Path) -> dict[str, int]:
    targets = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[str, int] = {}
    for pid in filter(str.isdecimal, os.listdir(proc)):
        try:
            for descriptor in os.listdir(proc / pid / "fd"):
                inode = targets.get(os.readlink(proc / pid / "fd" / descriptor))
                if inode is not None:
                    found.setdefault(inode, int(pid))
        except OSError:
            continue
        if len(found) == len(targets):
            break
    return found


def _command(proc: Path, pid: int) -> str:
    try:
        return (proc / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def _unit(proc: Path, pid: int) -> str:
    """The systemd unit, from the control group's path (name=systemd or the one hierarchy)."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "name=systemd"):
            for part in reversed(path.split("/")):
                if part.endswith((".service", ".scope")):
                    return part
    return ""
