"""Who holds a TCP port on this machine, for the message when it is taken."""

from __future__ import annotations

from pathlib import Path

_LISTEN = "0A"


def holder(port: int, proc: Path = Path("/proc")) -> str:
    """`name (pid N)` of the process that listens on `port`, "" when it cannot be told (proc(5), net/tcp)."""
    inodes = _inodes(port, proc)
    if not inodes:
        return ""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in proc.glob("[0-9]*"):
        try:
            if any(str(link.readlink()) in wanted for link in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:
            continue  # gone meanwhile, or somebody else's
    return ""


def _inodes(port: int, proc: Path) -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found
