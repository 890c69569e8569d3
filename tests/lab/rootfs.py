"""Debian root file systems made by mmdebstrap, cached under a name that says what is in them.

The mirror is the one this machine's own apt uses, so that a site with its own mirror needs no setting.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.lab.command import CommandError, run
from tests.lab.lock import locked
from tests.lab.paths import CACHE

NODE_PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "iproute2",
    "iputils-ping",
    "procps",
    "python3",
    "ca-certificates",
    "curl",
    "nftables",
    "util-linux",
)

# PID 1 of a node: under cgroup v1 nspawn mounts the controllers read-only, and without this no limit works.
NODE_INIT = """#!/bin/sh
for c in cpu cpuacct memory pids blkio devices freezer cpuset; do
  [ -d /sys/fs/cgroup/$c ] && mount -o remount,bind,rw /sys/fs/cgroup/$c
done
exec /lib/systemd/systemd "$@"
"""

# Timers that would reach for a network which is not there.
MASKED_UNITS = ("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "fstrim.timer")

# Documentation and translations: half the size of a small system, read by nobody here.
LEAN = (
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/info/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
)


def node_base(suite: str = "bookworm") -> Path:
    """The read-only root that test nodes of a Debian suite lie over; built on first use (about 30 s)."""
    key = digest(suite, *NODE_PACKAGES, NODE_INIT, *MASKED_UNITS, *LEAN)
    target = CACHE / "rootfs" / f"node-{suite}-{key}"
    with locked(CACHE / "rootfs" / f"{target.name}.lock"):
        if not target.exists():
            building = target.with_suffix(".building")
            bootstrap(building, suite, NODE_PACKAGES)
            _make_node(building)
            building.rename(target)
    return target


def bootstrap(target: Path, suite: str, packages: Iterable[str], variant: str = "minbase") -> None:
    """Build a minimal Debian with `packages` in `target`, replacing what is there. Raises CommandError."""
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    mirror = host_mirror()
    include = ",".join(packages)
    options = ("--mode=root", f"--variant={variant}", *LEAN, *([f"--include={include}"] if include else []))
    run("mmdebstrap", *options, suite, target, *([mirror] if mirror else []), timeout=900)


def host_mirror() -> str | None:
    """The archive URI from which this machine installs its own suite; None leaves the choice to mmdebstrap."""
    try:
        listing = run("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT) $(REPO_URI)").stdout
    except (CommandError, FileNotFoundError, subprocess.TimeoutExpired):
        return None
    suite = _host_suite()
    for line in listing.splitlines():
        words = line.split()
        if len(words) == 4 and words[1] == suite and words[2] == "main":
            return words[3].rstrip("/")
    return None


def digest(*parts: str) -> str:
    """A short name for a recipe: changes when any part of it does."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _host_suite() -> str:
    release = Path("/etc/os-release").read_text()
    names = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    return names.get("VERSION_CODENAME", "").strip('"')


def _make_node(root: Path) -> None:
    init = root / "nodeinit"
    init.write_text(NODE_INIT)
    init.chmod(0o755)
    (root / "var/log/journal").mkdir(parents=True, exist_ok=True)
    for unit in MASKED_UNITS:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
