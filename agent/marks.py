"""Whether somebody changed the files of an application by hand, at the price of a few lstat(2) calls.

systemd tells of what happens to units, nobody tells of a file that is edited. Looking at everything for each of many
applications every few seconds would keep an idle host busy.
"""

import os
from collections.abc import Iterable
from pathlib import Path

Marks = tuple[tuple[int, int, int, int] | None, ...]

# systemd.unit(5), "Unit File Search Path", as far as it comes before or beside /etc/systemd/system.
_OTHER_PLACES = tuple(map(Path, ("/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/system")))


def of_unit(units: Path, name: str) -> list[Path]:
    """A unit's file, what could mask it, and the directories of its drop-ins."""
    places = (units, *_OTHER_PLACES)
    return [*(place / name for place in places), *(place / f"{name}.d" for place in places)]


def take(paths: Iterable[Path]) -> Marks:
    """Device (which changes with a mount), inode, time of change and size of each; None for what is not there."""
    return tuple(map(_mark, paths))


def _mark(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
