"""Files that survive a power cut whole: written beside, synced, renamed over the old one, directory synced."""

import contextlib
import os
import tempfile
from pathlib import Path


def write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` by `data`. After return the new content is on disk; after a crash there is the old or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_directory(path.parent)


def write_if_changed(path: Path, data: bytes, mode: int = 0o600) -> bool:
    """Like `write`, but a regular file that holds `data` already is left alone. True when it was written."""
    if not path.is_symlink() and path.is_file() and path.read_bytes() == data:
        return False
    write(path, data, mode)
    return True


def remove(path: Path) -> bool:
    """Remove a file for good. False when there was none."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    sync_directory(path.parent)
    return True


def sync_directory(directory: Path) -> None:
    """Make creations, renames and removals in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
