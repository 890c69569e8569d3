"""Recipes of tiny images around a static busybox, each with one property that an agent must cope with."""

import shutil
import tarfile
from pathlib import Path
from typing import Any

from tests.lab.command import run
from tests.lab.images.debian import architecture
from tests.lab.lock import locked
from tests.lab.oci import Image, add_directory, add_file, add_symlink, image, index, layer
from tests.lab.paths import CACHE

_APPLETS: tuple[str, ...] = (
    "cat",
    "chmod",
    "date",
    "echo",
    "env",
    "false",
    "head",
    "hostname",
    "httpd",
    "id",
    "kill",
    "ls",
    "mkdir",
)
_APPLETS += ("mount", "nc", "ps", "seq", "sh", "sleep", "stat", "stty", "tail", "test", "touch", "true", "tty", "wget")
# Tells who it is, then stays until it is told to go.
STAY = "id; trap 'echo bye; exit 0' TERM; while :; do sleep 1 & wait $!; done"


def shell(script: str = STAY, *, passwd: str = "", group: str = "", **config: Any) -> Image:
    """An image that runs a shell script; `passwd` and `group` are the content of those files, absent when empty."""

    def write(tar: tarfile.TarFile) -> None:
        for directory in ("bin", "etc", "proc", "dev"):
            add_directory(tar, directory)
        add_directory(tar, "tmp", 0o1777)
        add_file(tar, "bin/busybox", busybox().read_bytes(), 0o755)
        for applet in _APPLETS:
            add_symlink(tar, f"bin/{applet}", "busybox")
        if passwd:
            add_file(tar, "etc/passwd", passwd.encode())
        if group:
            add_file(tar, "etc/group", group.encode())

    settings = {"Env": ["PATH=/bin"], "Entrypoint": ["/bin/sh", "-c"], "Cmd": [script], **config}
    return image([layer(write)], settings, architecture=architecture())


def two_architectures() -> Image:
    """An index whose other entry is for an architecture that this machine is not; its layer holds no program."""
    other = "arm64" if architecture() == "amd64" else "amd64"
    foreign = image(
        [layer(lambda tar: add_file(tar, "wrong", b"wrong architecture\n"))], {"Cmd": ["/wrong"]}, architecture=other
    )
    return index([foreign, shell()])


def busybox() -> Path:
    """Debian's static busybox, unpacked without installing it (it would replace the machine's own)."""
    target = CACHE / "busybox-static"
    with locked(target.with_name("busybox-static.lock")):
        if not target.exists():
            workplace = target.with_name("busybox-static.building")
            shutil.rmtree(workplace, ignore_errors=True)
            workplace.mkdir(parents=True)
            workplace.chmod(0o777)  # apt downloads as its own user
            run("apt-get", "download", "-qq", "busybox-static", cwd=workplace)
            [package] = workplace.glob("*.deb")
            run("dpkg-deb", "--extract", package, workplace / "root")
            shutil.copyfile(next((workplace / "root").glob("**/bin/busybox")), workplace / "busybox")
            (workplace / "busybox").rename(target)
            shutil.rmtree(workplace)
    return target
