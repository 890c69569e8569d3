"""Project quota of a volume's directory (quotactl(2), ioctl_xfs_fsgetxattr(2)): the size as a limit the kernel keeps.

The Q_X commands are documented for XFS; the kernel serves them for ext4 too (fs/quota/quota.c), and only they tell
whether limits are enforced and not just counted. It is a guard against mistakes: CAP_SYS_RESOURCE writes past the
limit on ext4, and the owner of a file may put it into another project.
"""

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass

PROJECTS = range(0x4F520000, 0x4F530000)
"""Ids of ours: far from those that people write into /etc/projid and from those that container engines count up to."""

_FS_IOC_FSGETXATTR = 0x801C581F
_FS_IOC_FSSETXATTR = 0x401C5820
_FS_XFLAG_PROJINHERIT = 0x200
_Q_XGETQUOTA, _Q_XSETQLIM, _Q_XGETQSTAT = (ord("X") << 8 | number for number in (3, 4, 5))
_PRJQUOTA = 2
_FS_DQUOT_VERSION = 1
_FS_PROJ_QUOTA = 1 << 1
_FS_DQ_BHARD = 1 << 3
_FS_QUOTA_PDQ_ENFD = 1 << 5
_BLOCK = 512
_MOST_BLOCKS = (2**63 - 1) // _BLOCK
"""The kernel counts bytes in 64 bits: more would wrap round to a small limit, or to none."""
_SYS_QUOTACTL_FD = 443
"""The same number on every architecture but alpha."""


class FileAttributes(ctypes.Structure):
    """struct fsxattr of linux/fs.h."""

    _fields_ = (
        ("xflags", ctypes.c_uint32),
        ("extsize", ctypes.c_uint32),
        ("nextents", ctypes.c_uint32),
        ("projid", ctypes.c_uint32),
        ("cowextsize", ctypes.c_uint32),
        ("pad", ctypes.c_ubyte * 8),
    )


class DiskQuota(ctypes.Structure):
    """struct fs_disk_quota of linux/dqblk_xfs.h; blocks of 512 bytes."""

    _fields_ = (
        ("version", ctypes.c_int8),
        ("flags", ctypes.c_int8),
        ("fieldmask", ctypes.c_uint16),
        ("id", ctypes.c_uint32),
        ("blk_hardlimit", ctypes.c_uint64),
        ("blk_softlimit", ctypes.c_uint64),
        ("ino_hardlimit", ctypes.c_uint64),
        ("ino_softlimit", ctypes.c_uint64),
        ("bcount", ctypes.c_uint64),
        ("icount", ctypes.c_uint64),
        ("timers_and_realtime", ctypes.c_ubyte * 56),
    )


class QuotaState(ctypes.Structure):
    """struct fs_quota_stat of linux/dqblk_xfs.h: its head, and room for what the kernel writes behind."""

    _fields_ = (("version", ctypes.c_int8), ("flags", ctypes.c_uint16), ("rest", ctypes.c_ubyte * 252))


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether the kernel keeps the limit; if not, why."""

    enforced: bool
    reason: str = ""


def limit(directory: int, size: int, project: int, taken: Collection[int], keep: Callable[[int], None]) -> Outcome:
    """Hold what is in `directory` (an open descriptor) to `size` bytes. Never raises OSError of its own.

    `project`: the id this directory was given before, or 0. `taken`: ids of other volumes. `keep` is told a new id
    before the file system is. Only a directory that is empty or has our id already is given it: what lies in it
    otherwise would stay uncounted, or belongs to a project of somebody else.
    """
    try:
        attributes = _attributes(directory)
        if not _enforces(directory):
            return Outcome(False, "project limits are not enforced on this file system")
        if attributes.projid not in (0, project):
            return Outcome(False, f"the directory is in project {attributes.projid} already, which is not ours")
        ours = attributes.projid == project != 0
        if not ours and os.listdir(directory):
            return Outcome(False, "the directory held data before it could have a project of its own")
        given = project or free(taken, lambda number: _used(directory, number))
    except OSError as error:
        return _refused(error)
    if given is None:
        return Outcome(False, "no project id is free")
    if given != project:
        keep(given)
    try:
        _set_limit(directory, given, size)
        if not (ours and attributes.xflags & _FS_XFLAG_PROJINHERIT):
            attributes.projid = given
            attributes.xflags |= _FS_XFLAG_PROJINHERIT
            fcntl.ioctl(directory, _FS_IOC_FSSETXATTR, attributes)
    except OSError as error:
        return _refused(error)
    return Outcome(True)


def free(taken: Collection[int], used: Callable[[int], bool]) -> int | None:
    """The first id that neither a volume nor anything on the file system has; None when all are gone."""
    return next((number for number in PROJECTS if number not in taken and not used(number)), None)


def blocks(size: int) -> int:
    """Blocks of 512 bytes that hold `size` bytes; never 0, which means no limit."""
    return min(max(1, -(-size // _BLOCK)), _MOST_BLOCKS)


def _refused(error: OSError) -> Outcome:
    return Outcome(False, f"the file system or the kernel says no: {error.strerror}")


def _attributes(directory: int) -> FileAttributes:
    attributes = FileAttributes()
    fcntl.ioctl(directory, _FS_IOC_FSGETXATTR, attributes)
    return attributes


def _enforces(directory: int) -> bool:
    state = QuotaState()
    _quotactl(directory, _Q_XGETQSTAT, 0, state)
    return bool(state.flags & _FS_QUOTA_PDQ_ENFD)


def _used(directory: int, project: int) -> bool:
    """ENOENT: the file system has never heard of it."""
    quota = DiskQuota()
    try:
        _quotactl(directory, _Q_XGETQUOTA, project, quota)
    except FileNotFoundError:
        return False
    return bool(quota.bcount or quota.icount)


def _set_limit(directory: int, project: int, size: int) -> None:
    quota = DiskQuota(_FS_DQUOT_VERSION, _FS_PROJ_QUOTA, _FS_DQ_BHARD, project, blocks(size))
    _quotactl(directory, _Q_XSETQLIM, project, quota)


def _quotactl(directory: int, command: int, project: int, value: ctypes.Structure) -> None:
    """quotactl_fd(2); before Linux 5.14 quotactl(2) on the block device. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    request, pointer = ctypes.c_uint(command << 8 | _PRJQUOTA), ctypes.byref(value)
    descriptor, number = ctypes.c_uint(directory), ctypes.c_uint(project)
    result = library.syscall(ctypes.c_long(_SYS_QUOTACTL_FD), descriptor, request, number, pointer)
    if result != 0 and ctypes.get_errno() == errno.ENOSYS:
        device = os.fstat(directory).st_dev
        special = f"/dev/block/{os.major(device)}:{os.minor(device)}"
        if not os.path.exists(special):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        result = library.quotactl(request, special.encode(), number, pointer)
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
