"""Layers made of Debian packages: a base that the images share, and on top what apt-get adds for one server."""

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.lab.command import run
from tests.lab.lock import locked
from tests.lab.oci import Blob, layer_from_directory
from tests.lab.paths import CACHE
from tests.lab.rootfs import LEAN, bootstrap, digest

SUITE = "bookworm"
# Names of Debian's architectures that OCI calls the same; the lab runs on no others.
_ARCHITECTURES = ("amd64", "arm64")
_TRANSIENT = (
    "dev/",
    "proc/",
    "run/",
    "sys/",
    "tmp/",
    "var/cache/",
    "var/lib/apt/lists/",
    "var/log/",
    "etc/resolv.conf",
)


def architecture() -> str:
    """This machine's architecture, as dpkg and OCI call it."""
    name = run("dpkg", "--print-architecture").stdout.strip()
    if name not in _ARCHITECTURES:
        raise RuntimeError(f"the lab builds images for {' and '.join(_ARCHITECTURES)}, not for {name}")
    return name


def base() -> Path:
    """The root of the base layer, built once (about 20 s)."""
    target = CACHE / "rootfs" / f"image-{SUITE}-{digest(SUITE, *LEAN)}"
    with locked(target.with_name(f"{target.name}.lock")):
        if not target.exists():
            building = target.with_name(f"{target.name}.building")
            bootstrap(building, SUITE, (), variant="apt")
            # A server in an image is started by its entry point, never by the package.
            policy = building / "usr/sbin/policy-rc.d"
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
            building.rename(target)
    return target


def base_layer() -> Blob:
    """The layer that all images of this module have at the bottom."""
    return layer_from_directory(base(), keep=_is_lasting)


def layer_over_base(script: str, keep: Callable[[str], bool] = lambda path: True) -> Blob:
    """What a shell script, run as root in a copy of the base with this machine's network, adds to the base."""
    workplace = CACHE / f"image-building-{os.getpid()}"
    upper = workplace / "upper"
    with _overlay(base(), upper, workplace) as root:
        shutil.copyfile("/etc/resolv.conf", root / "etc/resolv.conf")
        # Own mounts below the copy, which end with the script.
        mounts = f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev"
        shell = "env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 sh -eu"
        run("unshare", "--mount", "sh", "-euc", f"{mounts} && exec chroot {root} {shell}", input=script, timeout=900)
        # Read from the merged view, which hides overlayfs's own attributes; `upper` says what is new.
        return layer_from_directory(root, keep=lambda name: _is_lasting(name) and keep(name) and _is_new(upper / name))


def _is_lasting(name: str) -> bool:
    return not name.startswith(_TRANSIENT)


def _is_new(path: Path) -> bool:
    """Whether the upper directory holds the path as content; a deletion is a character device 0:0 (overlayfs.rst)."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not (stat.S_ISCHR(status.st_mode) and status.st_rdev == 0)


@contextlib.contextmanager
def _overlay(lower: Path, upper: Path, workplace: Path) -> Iterator[Path]:
    root, work = workplace / "root", workplace / "work"
    for directory in (upper, root, work):
        directory.mkdir(parents=True)
    run("mount", "-t", "overlay", "building", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", root)
    try:
        yield root
    finally:
        run("umount", root)
        shutil.rmtree(workplace)
