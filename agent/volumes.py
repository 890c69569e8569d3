"""Volume directories: one per PersistentVolume uid, kept unless somebody says otherwise by name.

`volumes/<uid>/` is the data, `volumes/<uid>.json` says whose it is. What has no such file beside it is not ours and is
never touched. Everything inside a directory is hostile: it is walked by descriptor, symlinks are never followed.
"""

import contextlib
import json
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from agent import durable, quota
from agent.errors import AgentError
from agent.images.view import ImageView
from agent.layout import Layout
from agent.users import Account
from horchestra.apimachinery import quantity
from horchestra.apimachinery.desired import VolumeReport
from horchestra.kinds.persistentvolume import PersistentVolume

log = logging.getLogger("horchestra.volumes")
_UID = re.compile(r"[0-9a-zA-Z][-0-9a-zA-Z]{0,62}")
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Volume:
    """What the node knows of a directory. `owned`: owner and mode were set at its first mount."""

    uid: str
    name: str
    lineage: str = ""
    owned: bool = False
    gone: bool = False
    """No desired state names it (any more); the data is kept."""
    project: int = 0
    """Id of its project quota; 0: it never had one."""


class Volumes:
    """The directories of one node. Calls block; `layout.volumes` must exist or be creatable."""

    def __init__(self, layout: Layout) -> None:
        self._root = layout.volumes
        self._root.mkdir(parents=True, exist_ok=True, mode=0o711)
        self._quotas: dict[str, quota.Outcome] = {}

    def all(self) -> dict[str, Volume]:
        """By uid. A file that cannot be read is passed over: its directory is kept and not touched."""
        found = {}
        for path in self._root.glob("*.json"):
            with contextlib.suppress(ValueError, TypeError, OSError):
                volume = Volume(**json.loads(path.read_bytes()))
                if volume.uid == path.stem:
                    found[volume.uid] = volume
        return found

    def ensure(self, wanted: PersistentVolume, lineage: str) -> None:
        """Make or adopt the directory of an object, and hold it to its size where the file system can.

        Raises AgentError VolumeNotAdoptable, VolumeLost, ForeignDirectory, InvalidSpec.
        """
        self._place(wanted, lineage)
        self._limit(wanted)

    def _place(self, wanted: PersistentVolume, lineage: str) -> None:
        uid, name = _checked(wanted.metadata.uid), wanted.metadata.name
        known = self.all()
        if uid in known:
            now = replace(known[uid], name=name, lineage=lineage, gone=False)
            if now != known[uid]:
                self._save(now)
            if not (self._root / uid).is_dir():
                raise AgentError(
                    "VolumeLost",
                    f'the directory {self._root / uid} of volume "{name}" is missing; put its data back, '
                    "or delete the volume and make a new one",
                )
            return
        if wanted.spec.adopt:
            self._adopt(uid, name, lineage, wanted.spec.adopt, known)
            return
        with contextlib.suppress(FileExistsError):
            (self._root / uid).mkdir(mode=0o700)
        if any((self._root / uid).iterdir()):
            raise AgentError("ForeignDirectory", f"{self._root / uid} holds data that no volume of this node knows")
        self._save(Volume(uid, name, lineage))

    def _limit(self, wanted: PersistentVolume) -> None:
        uid, known = wanted.metadata.uid, self.all()
        volume = known[uid]
        taken = {other.project for other in known.values()}
        directory = self._open(uid)
        try:
            size = quantity.byte_count(wanted.spec.size)
            outcome = quota.limit(directory, size, volume.project, taken, lambda given: self._give(volume, given))
        except ValueError as error:
            outcome = quota.Outcome(False, str(error))
        finally:
            os.close(directory)
        if outcome != self._quotas.get(uid):
            self._quotas[uid] = outcome
            log.info("volume %s: %s", volume.name, outcome.reason or "its size is enforced by a project quota")

    def _give(self, volume: Volume, project: int) -> None:
        self._save(replace(volume, project=project))

    def _adopt(self, uid: str, name: str, lineage: str, kept: str, known: dict[str, Volume]) -> None:
        old = known.get(kept)
        if old is None or not (self._root / _checked(kept)).is_dir():
            raise AgentError("VolumeNotAdoptable", f'volume "{name}" adopts {kept}, which is not kept on this node')
        if not old.gone:
            raise AgentError(
                "VolumeNotAdoptable", f'volume "{name}" adopts {kept}, which volume "{old.name}" still owns'
            )
        # The new file first: a crash between the two leaves the data findable under a name that says whose it was.
        (self._root / kept).rename(self._root / uid)
        self._save(Volume(uid, name, lineage, owned=True, project=old.project))
        durable.remove(self._root / f"{kept}.json")

    def previous(self, name: str, uid: str) -> str | None:
        """Uid of data kept from an earlier volume of this name."""
        kept = sorted(v.uid for v in self.all().values() if v.name == name and v.uid != uid and v.gone)
        return kept[0] if kept else None

    def prepare(self, uid: str, path: str, sub: str, account: Account, fs_group: int | None, view: ImageView) -> None:
        """Before a start: owner and mode of a new directory, the subPath, fsGroup. Raises AgentError."""
        volume = self.all().get(uid)
        if volume is None:
            raise AgentError("VolumeNotFound", f"volume {uid} does not exist on this node")
        directory = self._open(uid)
        try:
            if not volume.owned:
                owner, group, mode = _ownership(view, path, account)
                os.fchown(directory, owner, group)
                os.fchmod(directory, mode)
                self._save(replace(volume, owned=True))
            if sub:
                os.close(_descend(directory, sub, account))
            if fs_group is not None:
                _give_group(directory, fs_group)
        finally:
            os.close(directory)

    def retire(self, uid: str) -> None:
        """Nothing names it; its data stays and is listed."""
        volume = self.all().get(uid)
        if volume is not None and not volume.gone:
            self._save(replace(volume, gone=True))

    def delete(self, uid: str, lineage: str) -> bool:
        """Remove directory and data; True when it is gone. A volume of another lineage is kept (and False returned).

        Raises AgentError VolumeMounted, VolumeHoldsFileSystem.
        """
        volume = self.all().get(_checked(uid))
        if volume is None:
            return True
        if volume.lineage != lineage:
            self.retire(uid)
            return False
        path = self._root / uid
        mounts = _mounts_below(path)
        if mounts:
            raise AgentError(
                "VolumeHoldsFileSystem",
                f"{mounts[0]} is mounted inside volume {volume.name}; unmount it, then the volume can be removed",
            )
        if path.is_dir():
            directory = self._open(uid)
            try:
                _empty(directory, os.fstat(directory).st_dev, str(path))
            finally:
                os.close(directory)
            path.rmdir()
        durable.remove(self._root / f"{uid}.json")
        self._quotas.pop(uid, None)
        return True

    def report(self, used_by: Iterable[str], sizes: dict[str, int]) -> list[VolumeReport]:
        """Every directory of ours; `used_by`: uids that an application mounts."""
        bound = set(used_by)
        return [
            VolumeReport(
                uid=volume.uid,
                name=volume.name,
                path=str(self._root / volume.uid),
                bytes=sizes.get(volume.uid),
                phase="Retained" if volume.gone else "Bound" if volume.uid in bound else "Available",
                quota_enforced=volume.uid in self._quotas and self._quotas[volume.uid].enforced,
            )
            for volume in sorted(self.all().values(), key=lambda volume: volume.uid)
        ]

    def sizes(self) -> dict[str, int]:
        """Bytes on disk by uid; walks every directory."""
        return {uid: _size(self._root / uid) for uid in self.all()}

    def _open(self, uid: str) -> int:
        try:
            return os.open(self._root / _checked(uid), _OPEN)
        except OSError as error:
            raise AgentError("VolumeLost", f"{self._root / uid} cannot be opened: {error.strerror}") from error

    def _save(self, volume: Volume) -> None:
        durable.write(self._root / f"{_checked(volume.uid)}.json", json.dumps(asdict(volume)).encode())


def _checked(uid: str) -> str:
    if not _UID.fullmatch(uid):
        raise AgentError("InvalidSpec", f"{uid!r} is no uid of a volume")
    return uid


def _ownership(view: ImageView, path: str, account: Account) -> tuple[int, int, int]:
    """As the image has the mount path, else the application's own and closed to others."""
    status = view.stat(path)
    if status is not None and stat.S_ISDIR(status.st_mode):
        return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)
    return account.uid, account.gid, 0o700


def _descend(directory: int, sub: str, account: Account) -> int:
    """Open `sub` below `directory`, making what is missing. Raises AgentError InvalidSubPath."""
    here = os.dup(directory)
    for name in (name for name in sub.split("/") if name not in ("", ".")):
        try:
            try:
                os.mkdir(name, 0o755, dir_fd=here)
                os.chown(name, account.uid, account.gid, dir_fd=here, follow_symlinks=False)
            except FileExistsError:
                pass
            below = os.open(name, _OPEN, dir_fd=here)
        except OSError as error:
            raise AgentError("InvalidSubPath", f"subPath {sub!r}: {name!r} is not a directory in the volume") from error
        finally:
            os.close(here)
        here = below
    return here


def _give_group(directory: int, group: int) -> None:
    """Group, group access and the setgid bit for a whole tree, unless its top has them already."""
    top = os.fstat(directory)
    if top.st_gid == group and top.st_mode & stat.S_ISGID and top.st_mode & 0o070 == 0o070:
        return
    for _, directories, files, here in os.fwalk(".", dir_fd=directory, follow_symlinks=False):
        for name in [*directories, *files]:
            status = os.stat(name, dir_fd=here, follow_symlinks=False)
            os.chown(name, -1, group, dir_fd=here, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                with _opened(name, here) as descriptor:
                    os.fchmod(descriptor, _group_mode(os.fstat(descriptor).st_mode))
    os.fchown(directory, -1, group)
    os.fchmod(directory, _group_mode(os.fstat(directory).st_mode))


def _group_mode(mode: int) -> int:
    if stat.S_ISDIR(mode):
        return stat.S_IMODE(mode) | 0o070 | stat.S_ISGID
    return stat.S_IMODE(mode) | 0o060 | (0o010 if mode & 0o100 else 0)


@contextlib.contextmanager
def _opened(name: str, directory: int) -> Iterator[int]:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _empty(directory: int, device: int, path: str) -> None:
    """Remove everything below, on the same file system only. Raises AgentError VolumeHoldsFileSystem."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if status.st_dev != device:
            raise AgentError("VolumeHoldsFileSystem", f"{path}/{name} is another file system; unmount it")
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=directory)
            continue
        below = os.open(name, _OPEN, dir_fd=directory)
        try:
            _empty(below, device, f"{path}/{name}")
        finally:
            os.close(below)
        os.rmdir(name, dir_fd=directory)


def _mounts_below(path: Path) -> list[str]:
    """Mountpoints at or below `path` (proc(5), mountinfo: field 5, octal escapes)."""
    prefix = str(path)
    found = []
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split(" ")[4])
        if point == prefix or point.startswith(prefix + "/"):
            found.append(point)
    return found


def _size(path: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for _, _, files, here in os.fwalk(path, follow_symlinks=False):
            for name in files:
                with contextlib.suppress(OSError):
                    total += os.stat(name, dir_fd=here, follow_symlinks=False).st_blocks * 512
    return total
