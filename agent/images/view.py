"""Looks paths up across unpacked layers as overlayfs would show them, without mounting anything.

Used before there is a mount: image accounts, PATH lookup, owner and mode of mount paths, parents of an upper layer.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from agent.errors import AgentError

OPAQUE = "trusted.overlay.opaque"
_MAX_SYMLINKS = 40
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class _Found:
    """A path with its symlinks resolved, and where it lies in the layers: several places for a merged directory."""

    __slots__ = ("parts", "places", "status")

    def __init__(self, parts: list[str], places: list[str], status: os.stat_result) -> None:
        self.parts, self.places, self.status = parts, places, status


class ImageView:
    """The merged tree of `layers` (host directories, top first). Paths are absolute or taken so; symlinks stay inside.

    A path that does not exist, runs through a file, or loops gives None: no program in the image could use it either.
    """

    def __init__(self, layers: Sequence[Path]) -> None:
        self._roots = [os.fspath(layer) for layer in visible(layers)]

    def stat(self, path: str) -> os.stat_result | None:
        """Status of what `path` leads to."""
        found = self._find(path, follow=True)
        return found.status if found else None

    def lstat(self, path: str) -> os.stat_result | None:
        """Status of `path` itself when that is a symlink."""
        found = self._find(path, follow=False)
        return found.status if found else None

    def exists(self, path: str) -> bool:
        return self._find(path, follow=True) is not None

    def resolve(self, path: str) -> str | None:
        """`path` as an absolute path without symlinks."""
        found = self._find(path, follow=True)
        return "/" + "/".join(found.parts) if found else None

    def readlink(self, path: str) -> str | None:
        """Target of the symlink at `path`, as written; None when there is no symlink."""
        found = self._find(path, follow=False)
        return os.readlink(found.places[0]) if found and stat.S_ISLNK(found.status.st_mode) else None

    def read(self, path: str, limit: int) -> bytes:
        """Content of a regular file of at most `limit` bytes.

        Raises FileNotFoundError when there is none, AgentError InvalidImage when it is larger or not a regular file.
        """
        found = self._find(path, follow=True)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "not in the image", path)
        if not stat.S_ISREG(found.status.st_mode):
            raise AgentError("InvalidImage", f"{path} in the image is not a regular file")
        if found.status.st_size > limit:
            raise AgentError("InvalidImage", f"{path} in the image has {found.status.st_size} bytes, more than {limit}")
        descriptor = os.open(found.places[0], os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            return file.read(limit)

    def locate(self, path: str) -> Path | None:
        """Host path of the topmost layer's entry for `path`, symlinks resolved but for the last name."""
        found = self._find(path, follow=False)
        return Path(found.places[0]) if found else None

    def _find(self, path: str, follow: bool) -> _Found | None:
        if "\0" in path or not self._roots:
            return None
        root = _Found([], self._roots, os.lstat(self._roots[0]))
        trail, todo, links = [root], deque(_names(path)), 0
        while todo:
            name = todo.popleft()
            if name == "..":
                if not stat.S_ISDIR(trail[-1].status.st_mode):
                    return None
                if len(trail) > 1:
                    trail.pop()
                continue
            child = _child(trail[-1], name)
            if child is None:
                return None
            if stat.S_ISLNK(child.status.st_mode) and (todo or follow or path.endswith("/")):
                links += 1
                if links > _MAX_SYMLINKS:
                    return None
                target = os.readlink(child.places[0])
                if target.startswith("/"):
                    trail = [root]
                todo.extendleft(reversed(_names(target)))
                continue
            trail.append(child)
        needs_directory = path.endswith(("/", "/."))
        return None if needs_directory and not stat.S_ISDIR(trail[-1].status.st_mode) else trail[-1]


def _child(directory: _Found, name: str) -> _Found | None:
    """Entry `name` of a merged directory: whiteouts end the search, directories merge until one is opaque."""
    if not stat.S_ISDIR(directory.status.st_mode):
        return None
    places: list[str] = []
    status: os.stat_result | None = None
    for place in directory.places:
        candidate = f"{place}/{name}"
        try:
            found = os.lstat(candidate)
        except OSError as error:
            if error.errno in _ABSENT:
                continue
            raise
        if not stat.S_ISDIR(found.st_mode):
            if status is None and not is_whiteout(found):
                return _Found([*directory.parts, name], [candidate], found)
            break
        places.append(candidate)
        status = status or found
        if is_opaque(candidate):
            break
    return _Found([*directory.parts, name], places, status) if status else None


def visible(layers: Sequence[Path]) -> tuple[Path, ...]:
    """The layers (top first) down to the first whose root is opaque: on a root the kernel ignores that mark."""
    for count, layer in enumerate(layers, 1):
        if is_opaque(os.fspath(layer)):
            return tuple(layers[:count])
    return tuple(layers)


def is_whiteout(status: os.stat_result) -> bool:
    """Whether an entry of a layer stands for a deleted one (kernel Documentation/filesystems/overlayfs.rst)."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(directory: str) -> bool:
    """Whether a directory of a layer hides the lower layers' directory of that name."""
    try:
        return os.getxattr(directory, OPAQUE, follow_symlinks=False) == b"y"
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return False
        raise


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
