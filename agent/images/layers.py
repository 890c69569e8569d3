"""Unpacks one image layer into a directory of its own, in the form overlayfs wants for a lower directory.

The layer is hostile. No path is ever handed to the kernel whole: each parent directory is opened by name from the
descriptor of its own parent with O_NOFOLLOW, symlinks in parents are resolved here, inside the layer's root, and every
object is created with exclusive calls. Whiteouts and opaque marks are applied last: they concern lower layers only,
wherever they stand in the archive.

A layer may lean on the layers below it: entries whose parents it does not hold, hard links to lower files. Then `lower`
is asked for a view of them and `depends_on_lower` becomes true: the result is right for that chain only.
"""

import errno
import os
import shutil
import stat
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agent.errors import AgentError
from agent.images.tar import Kind, TarEntry, TarReader
from agent.images.view import OPAQUE, ImageView

_WHITEOUT = b".wh."
_OPAQUE_MARK = b".wh..wh..opq"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ID = 0xFFFFFFFF
_MAX_SYMLINKS = 40
_MAX_DEPTH = 256  # keeps recursive removal within Python's stack and the descriptor limit
_MAX_PATH = 4095
_OPEN_DIRECTORIES = 128
_TIME_RANGE = (-(1 << 31), 1 << 34)  # what ext4 can store, in seconds
_XATTRS = (b"security.capability", b"system.posix_acl_access", b"system.posix_acl_default")


@dataclass(frozen=True, slots=True)
class Metadata:
    """Owner, permission bits, modification time and extended attributes of one object."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int = 0
    xattrs: dict[bytes, bytes] = field(default_factory=dict)

    @classmethod
    def of_entry(cls, entry: TarEntry) -> "Metadata":
        if not (0 <= entry.uid < _NO_ID and 0 <= entry.gid < _NO_ID):
            raise _invalid(f"entry {entry.name!r} has the impossible owner {entry.uid}:{entry.gid}")
        low, high = _TIME_RANGE
        mtime = min(max(entry.mtime_ns, low * 1_000_000_000), high * 1_000_000_000 - 1)
        xattrs = {name: value for name, value in entry.xattrs.items() if _is_kept(name)} if entry.xattrs else {}
        return cls(entry.mode, entry.uid, entry.gid, mtime, xattrs)

    @classmethod
    def of_file(cls, path: Path) -> "Metadata":
        status = os.lstat(path)
        names = [] if stat.S_ISLNK(status.st_mode) else os.listxattr(path, follow_symlinks=False)
        xattrs = {
            os.fsencode(name): os.getxattr(path, name, follow_symlinks=False)
            for name in names
            if _is_kept(os.fsencode(name))
        }
        return cls(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns, xattrs)

    def apply(self, descriptor: int) -> None:
        """For an object this process just made. Owner first: changing it clears set-id bits and file capabilities."""
        if self.uid or self.gid:  # the agent's own new objects are root's already
            os.fchown(descriptor, self.uid, self.gid)
        os.fchmod(descriptor, self.mode)
        for name, value in self.xattrs.items():
            _set_xattr(descriptor, name, value)
        os.utime(descriptor, ns=(self.mtime_ns, self.mtime_ns))


_IMPLICIT = Metadata(0o755, 0, 0)


class LayerExtractor:
    """Extracts one layer into the empty directory `root`. Raises AgentError InvalidImage; OSError as it comes.

    `lower` gives the view of the layers below; it may block until they are there. It is called only when needed.
    """

    def __init__(self, root: Path, lower: Callable[[], ImageView], max_entries: int = 2_000_000) -> None:
        self.depends_on_lower = False
        self._root = os.open(root, _DIRECTORY)
        self._lower_view = lower
        self._max_entries = max_entries
        self._open: dict[bytes, int] = {}
        self._directories: dict[bytes, Metadata] = {b"": _IMPLICIT}
        self._whiteouts: set[bytes] = set()
        self._opaque: set[bytes] = set()

    def extract(self, chunks: Iterable[bytes]) -> None:
        """Unpacks the tar stream in `chunks` and reads it to its very end."""
        try:
            reader = TarReader(chunks)
            for count, entry in enumerate(reader):
                if count >= self._max_entries:
                    raise _invalid(f"layer holds more than {self._max_entries} entries")
                self._entry(entry, reader)
            reader.drain()
            self._hide_lower()
            self._finish_directories()
        except OSError as error:
            if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EMLINK):
                raise _invalid(f"layer holds a path that cannot exist: {error}") from error
            raise
        finally:
            self._close_directories()
            os.close(self._root)

    def _entry(self, entry: TarEntry, reader: TarReader) -> None:
        parts = _split(entry.name)
        if not parts:
            if entry.kind != Kind.DIRECTORY:
                raise _invalid(f"the root of the layer is not a directory but an entry of type {entry.kind!r}")
            self._directories[b""] = Metadata.of_entry(entry)
            return
        name = parts.pop()
        parent, descriptor = self._directory(parts)
        if name.startswith(_WHITEOUT):
            self._note_whiteout(parent, name)
            return
        path = _join(parent, name)
        if entry.kind == Kind.FILE:
            self._file(descriptor, name, path, entry, reader)
        elif entry.kind == Kind.DIRECTORY:
            self._make_directory(descriptor, name, path, Metadata.of_entry(entry))
        elif entry.kind == Kind.HARD_LINK:
            self._hard_link(descriptor, name, path, entry)
        else:
            self._special(descriptor, name, path, entry)

    # Objects

    def _file(self, parent: int, name: bytes, path: bytes, entry: TarEntry, reader: TarReader) -> None:
        metadata = Metadata.of_entry(entry)
        try:
            descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        except FileExistsError:
            self._remove(parent, name, path)
            descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
        try:
            for piece in reader.content():
                _write(descriptor, piece)
            metadata.apply(descriptor)
        finally:
            os.close(descriptor)

    def _make_directory(self, parent: int, name: bytes, path: bytes, metadata: Metadata) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                os.unlink(name, dir_fd=parent)
                os.mkdir(name, 0o700, dir_fd=parent)
                self._whiteouts.add(path)  # what it replaces had already hidden the lower directory
        self._directories[path] = metadata

    def _hard_link(self, parent: int, name: bytes, path: bytes, entry: TarEntry) -> None:
        target = _split(entry.link)
        if not target:
            raise _invalid(f"hard link {entry.name!r} to the root directory")
        keep = os.dup(parent)  # looking the target up may close cached descriptors
        try:
            found = self._link_target(target)
            if found is None:
                raise _invalid(f"hard link {entry.name!r} to {entry.link!r}, which no layer holds at this point")
            target_path, source = found
            if target_path == path:
                return
            if path not in (b"", *_prefixes(target_path)) and _exists(keep, name):
                self._remove(keep, name, path)
            try:
                os.link(target[-1], name, src_dir_fd=source, dst_dir_fd=keep, follow_symlinks=False)
            except (FileExistsError, PermissionError) as error:
                raise _invalid(f"hard link {entry.name!r} to {entry.link!r} is impossible: {error.strerror}") from error
        finally:
            os.close(keep)

    def _link_target(self, parts: list[bytes]) -> tuple[bytes, int] | None:
        """Path of a hard link's target and its parent's descriptor; a target of a lower layer is copied up first."""
        parent, descriptor = self._directory(parts[:-1])
        path = _join(parent, parts[-1])
        if not _exists(descriptor, parts[-1]):
            source = self._in_lower(path)
            if source is None or stat.S_ISDIR(os.lstat(source).st_mode):
                return None
            self._copy_up(descriptor, parts[-1], source)
        return path, descriptor

    def _special(self, parent: int, name: bytes, path: bytes, entry: TarEntry) -> None:
        metadata = Metadata.of_entry(entry)
        if entry.kind == Kind.SYMLINK and (not entry.link or len(entry.link) > _MAX_PATH):
            raise _invalid(f"symlink {entry.name!r} with a target of {len(entry.link)} bytes")
        try:
            self._create_special(parent, name, entry)
        except FileExistsError:
            self._remove(parent, name, path)
            self._create_special(parent, name, entry)
        _apply_by_name(parent, name, metadata, symlink=entry.kind == Kind.SYMLINK)

    def _create_special(self, parent: int, name: bytes, entry: TarEntry) -> None:
        if entry.kind == Kind.SYMLINK:
            os.symlink(entry.link, name, dir_fd=parent)
        elif entry.kind == Kind.FIFO:
            os.mkfifo(name, 0o600, dir_fd=parent)
        else:
            if not (0 <= entry.major < 1 << 12 and 0 <= entry.minor < 1 << 20):
                raise _invalid(f"device {entry.name!r} with the impossible number {entry.major}:{entry.minor}")
            kind = stat.S_IFCHR if entry.kind == Kind.CHARACTER else stat.S_IFBLK
            os.mknod(name, kind | 0o600, os.makedev(entry.major, entry.minor), dir_fd=parent)

    def _copy_up(self, parent: int, name: bytes, source: Path) -> None:
        metadata = Metadata.of_file(source)
        status = os.lstat(source)
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(os.fsencode(source)), name, dir_fd=parent)
            _apply_by_name(parent, name, metadata, symlink=True)
        elif stat.S_ISREG(status.st_mode):
            descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=parent)
            with open(descriptor, "wb") as target:
                with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as content:
                    shutil.copyfileobj(content, target, 1 << 20)
                target.flush()
                metadata.apply(target.fileno())
        else:
            os.mknod(name, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev, dir_fd=parent)
            _apply_by_name(parent, name, metadata, symlink=False)

    def _remove(self, parent: int, name: bytes, path: bytes) -> None:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
            os.unlink(name, dir_fd=parent)
            return
        below = path + b"/"
        for key in [key for key in self._open if key == path or key.startswith(below)]:
            os.close(self._open.pop(key))
        for key in [key for key in self._directories if key == path or key.startswith(below)]:
            del self._directories[key]
        shutil.rmtree(name, dir_fd=parent)

    # Whiteouts

    def _note_whiteout(self, parent: bytes, name: bytes) -> None:
        if name == _OPAQUE_MARK:
            self._opaque.add(parent)
            return
        hidden = name[len(_WHITEOUT) :]
        if hidden in (b"", b".", b".."):
            raise _invalid(f"whiteout {name!r} in {parent!r} names nothing that could be deleted")
        if not hidden.startswith(_WHITEOUT):  # aufs' own bookkeeping (.wh..wh.plnk) deletes nothing
            self._whiteouts.add(_join(parent, hidden))

    def _hide_lower(self) -> None:
        for path in sorted(self._whiteouts):
            head, _, name = path.rpartition(b"/")
            found = self._find_directory(_split(head))
            if found is None or found[0] != head or self._is_opaque(head):
                continue
            try:
                os.mknod(name, stat.S_IFCHR | 0o600, os.makedev(0, 0), dir_fd=found[1])
            except FileExistsError:
                if stat.S_ISDIR(os.lstat(name, dir_fd=found[1]).st_mode):
                    self._opaque.add(path)
        for path in self._opaque:
            found = self._find_directory(_split(path))
            if found is not None and found[0] == path:
                os.setxattr(found[1], OPAQUE, b"y")

    def _is_opaque(self, path: bytes) -> bool:
        """Whether nothing of the lower layers shows in the directory; a whiteout there would be listed as a ghost."""
        return b"" in self._opaque or any(prefix in self._opaque for prefix in _prefixes(path))

    # Directories

    def _directory(self, parts: list[bytes]) -> tuple[bytes, int]:
        """Real path and descriptor of a directory; what is missing is made with the lower layers' metadata."""
        found = self._walk(parts, create=True)
        assert found is not None
        return found

    def _find_directory(self, parts: list[bytes]) -> tuple[bytes, int] | None:
        """The same without making anything; None when this layer does not hold it (yet)."""
        return self._walk(parts, create=False)

    def _walk(self, parts: list[bytes], create: bool) -> tuple[bytes, int] | None:
        path = b"/".join(parts)
        if (known := self._open.get(path)) is not None:
            return path, known
        todo, done, descriptor, links = deque(parts), b"", self._root, 0
        while todo:
            name = todo.popleft()
            if name == b"..":  # only symlink targets bring it here; above the root there is the root
                todo.extendleft(reversed(_names(done)[:-1]))
                done, descriptor = b"", self._root
                continue
            child = _join(done, name)
            opened = self._open_child(descriptor, name, child, create)
            if opened is None:
                return None
            if isinstance(opened, bytes):
                links += 1
                if links > _MAX_SYMLINKS or len(opened) > _MAX_PATH:
                    raise _invalid(f"too many symlinks on the way to {path!r}")
                if opened.startswith(b"/"):
                    done, descriptor = b"", self._root
                todo.extendleft(reversed(_names(opened)))
                continue
            done, descriptor = child, opened
        return done, descriptor

    def _open_child(self, parent: int, name: bytes, path: bytes, create: bool) -> int | bytes | None:
        """Descriptor of a directory, or the target of the symlink that stands in its place, or None."""
        if (known := self._open.get(path)) is not None:
            return known
        if path.count(b"/") >= _MAX_DEPTH:
            raise _invalid(f"path with more than {_MAX_DEPTH} directories: {path[:80]!r}…")
        try:
            return self._remember(path, os.open(name, _DIRECTORY, dir_fd=parent))
        except FileNotFoundError:
            lower = self._in_lower(path)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            return _link_or_refuse(parent, name, path)
        kind = os.lstat(lower).st_mode if lower is not None else 0
        if lower is not None and stat.S_ISLNK(kind):
            return os.readlink(os.fsencode(lower))
        if not create:
            return None
        os.mkdir(name, 0o700, dir_fd=parent)
        self._directories[path] = Metadata.of_file(lower) if lower is not None and stat.S_ISDIR(kind) else _IMPLICIT
        return self._remember(path, os.open(name, _DIRECTORY, dir_fd=parent))

    def _in_lower(self, path: bytes) -> Path | None:
        """Host path of the lower layers' entry for `path`, unless this layer hides it."""
        self.depends_on_lower = True
        if any(prefix in self._whiteouts or _parent(prefix) in self._opaque for prefix in _prefixes(path)):
            return None
        return self._lower_view().locate(os.fsdecode(path))

    def _remember(self, path: bytes, descriptor: int) -> int:
        if len(self._open) >= _OPEN_DIRECTORIES:
            self._close_directories()
        self._open[path] = descriptor
        return descriptor

    def _close_directories(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _finish_directories(self) -> None:
        """Deepest first, so that a parent's time is set after its last child was touched."""
        for path in sorted(self._directories, key=lambda path: path.count(b"/") if path else -1, reverse=True):
            found = self._find_directory(_split(path))
            if found is not None and found[0] == path:
                self._directories[path].apply(found[1])


def _link_or_refuse(parent: int, name: bytes, path: bytes) -> bytes:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise _invalid(f"{path!r} is used as a directory but is none") from None


def _apply_by_name(parent: int, name: bytes, metadata: Metadata, symlink: bool) -> None:
    """For what cannot be opened without side effects; this process made `name` in a directory nobody else sees."""
    os.chown(name, metadata.uid, metadata.gid, dir_fd=parent, follow_symlinks=False)
    if not symlink:
        os.chmod(name, metadata.mode, dir_fd=parent)
    os.utime(name, ns=(metadata.mtime_ns, metadata.mtime_ns), dir_fd=parent, follow_symlinks=False)


def _set_xattr(descriptor: int, name: bytes, value: bytes) -> None:
    try:
        os.setxattr(descriptor, name, value)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.E2BIG, errno.ENOSPC) or name == b"security.capability":
            raise _invalid(f"extended attribute {name!r} cannot be set: {error.strerror}") from error
        if error.errno != errno.EOPNOTSUPP:  # a file system without user attributes or ACLs
            raise


def _is_kept(name: bytes) -> bool:
    """File capabilities, ACLs, user attributes. Overlay's own could redirect lookups; labels belong to the host."""
    return name in _XATTRS or (name.startswith(b"user.") and not name.startswith(b"user.overlay."))


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _exists(directory: int, name: bytes) -> bool:
    try:
        os.lstat(name, dir_fd=directory)
    except FileNotFoundError:
        return False
    return True


def _split(path: bytes) -> list[bytes]:
    """Names of an archive path. A leading "/" means the layer's root; ".." is refused wherever it stands."""
    names = _names(path)
    if b".." in names:
        raise _invalid(f"path {path!r} leads out of the image")
    if len(path) > _MAX_PATH:
        raise _invalid(f"path of {len(path)} bytes: {path[:80]!r}…")
    return names


def _names(path: bytes) -> list[bytes]:
    return [name for name in path.split(b"/") if name not in (b"", b".")]


def _join(parent: bytes, name: bytes) -> bytes:
    return parent + b"/" + name if parent else name


def _parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def _prefixes(path: bytes) -> list[bytes]:
    """The path and all paths above it but the root: "a/b" gives "a", "a/b"."""
    names = path.split(b"/")
    return [b"/".join(names[: count + 1]) for count in range(len(names))]


def _invalid(why: str) -> AgentError:
    return AgentError("InvalidImage", why)
