"""The skeleton: the top layer of an application's root, with every mountpoint that its read-only image lacks.

Entries of the skeleton hide the image's owner and mode of the same directory, so parents repeat what the image has.
"""

import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agent import durable
from agent.errors import AgentError
from agent.images.view import ImageView
from agent.launch import Launch

SYSTEM_DIRECTORIES = (("/proc", 0o555), ("/sys", 0o555), ("/dev", 0o755), ("/run", 0o755), ("/tmp", 0o1777),
                      ("/var/tmp", 0o1777))  # fmt: skip
SYSTEM_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/hostname")
"""Files of the host that are bound into each root; a regular file here also hides a symlink of the image."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A directory (or an empty file) of the skeleton: absolute path without symlinks, mode bits, owner."""

    path: str
    mode: int
    uid: int = 0
    gid: int = 0
    file: bool = False


def skeleton(view: ImageView, launch: Launch) -> list[Entry]:
    """What the skeleton of `launch` holds, parents first. Raises AgentError InvalidMountPath."""
    entries: dict[str, Entry] = {}
    for path, mode in SYSTEM_DIRECTORIES:
        _add_directory(view, path, mode, entries)
    for path in SYSTEM_FILES:
        _add_file(view, path, entries)
    for mount in sorted(launch.mounts, key=lambda mount: mount.path):
        _add_directory(view, mount.path, 0o755, entries)
    covered = [PurePosixPath(mount.path) for mount in launch.mounts]
    if not any(PurePosixPath(launch.working_dir).is_relative_to(path) for path in covered):
        _add_directory(view, launch.working_dir, 0o755, entries)
    return list(entries.values())


def write(entries: Iterable[Entry], directory: Path) -> None:
    """Make the skeleton in `directory`, whole or not at all; what lies there is replaced."""
    building = directory.with_name(f".{directory.name}.new")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True, mode=0o755)
    building.chmod(0o755)
    for entry in entries:
        target = building / entry.path.lstrip("/")
        if entry.file:
            target.touch()
        elif entry.path != "/":
            target.mkdir(exist_ok=True)
        os.chown(target, entry.uid, entry.gid)
        target.chmod(entry.mode)
    shutil.rmtree(directory, ignore_errors=True)
    building.rename(directory)
    durable.sync_directory(directory.parent)


def _add_directory(view: ImageView, path: str, mode: int, entries: dict[str, Entry]) -> None:
    status = view.stat(path)
    if status is not None and stat.S_ISDIR(status.st_mode):
        return
    if status is not None:
        raise AgentError("InvalidMountPath", f"{path} is a file in the image; a directory is needed there")
    parts = _add_parents(view, path, entries)
    full = "/" + "/".join(parts)
    entries.setdefault(full, Entry(full, mode))


def _add_file(view: ImageView, path: str, entries: dict[str, Entry]) -> None:
    status = view.lstat(path)
    if status is not None and stat.S_ISREG(status.st_mode):
        return
    if status is not None and stat.S_ISDIR(status.st_mode):
        raise AgentError("InvalidImage", f"{path} is a directory in the image; the host's file cannot be put there")
    full = "/" + "/".join(_add_parents(view, path, entries))
    entries.setdefault(full, Entry(full, 0o644, file=True))


def _add_parents(view: ImageView, path: str, entries: dict[str, Entry]) -> list[str]:
    """Add the directories above `path`, as the image has them; returns the parts of `path` with symlinks resolved."""
    names = [name for name in path.split("/") if name]
    resolved: list[str] = []
    for name in names[:-1]:
        here = "/" + "/".join([*resolved, name])
        real = view.resolve(here)
        if real is None:
            resolved.append(name)  # missing, or a symlink to nowhere, which a directory then hides
            entries.setdefault(here, Entry(here, 0o755))
            continue
        status = view.stat(here)
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise AgentError("InvalidMountPath", f"{path} lies below {here}, which is a file in the image")
        resolved = [part for part in real.split("/") if part]
        _add_existing(view, resolved, entries)
    return [*resolved, names[-1]]


def _add_existing(view: ImageView, parts: list[str], entries: dict[str, Entry]) -> None:
    for depth in range(1, len(parts) + 1):
        path = "/" + "/".join(parts[:depth])
        status = view.stat(path)
        if status is not None:
            entries.setdefault(path, Entry(path, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid))
