"""The skeleton: what an image lacks, without changing what it has."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from agent import rootfs
from agent.errors import AgentError
from agent.images.view import ImageView
from agent.launch import Launch, Mount
from agent.users import Account

LAUNCH = Launch("d", "/x", ("x",), (), (), Account(0, 0), "/", "hardened", (), False, ())


def paths(layer: Path, *mounts: str, working_dir: str = "/") -> dict[str, rootfs.Entry]:
    launch = replace(LAUNCH, working_dir=working_dir, mounts=tuple(Mount("tmpfs", path, size=1) for path in mounts))
    return {entry.path: entry for entry in rootfs.skeleton(ImageView([layer]), launch)}


def test_an_empty_image_gets_every_mountpoint(tmp_path: Path) -> None:
    found = paths(tmp_path, "/data/deep", working_dir="/work")
    assert {"/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/etc/resolv.conf", "/data/deep", "/work"} <= set(
        found
    )
    assert found["/tmp"].mode == 0o1777
    assert found["/etc/hosts"].file


def test_parents_repeat_owner_and_mode_of_the_image(tmp_path: Path) -> None:
    parent = tmp_path / "var" / "lib"
    parent.mkdir(parents=True)
    parent.chmod(0o2750)
    os.chown(parent, 12, 34)
    entry = paths(tmp_path, "/var/lib/new")["/var/lib"]
    assert (entry.mode, entry.uid, entry.gid) == (0o2750, 12, 34)


def test_a_mountpoint_behind_a_symlink_is_made_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    found = paths(tmp_path, "/var/run/app")
    assert "/run/app" in found
    assert "/var/run/app" not in found


def test_a_symlink_to_nowhere_and_a_symlinked_resolver_are_covered(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/resolv.conf").symlink_to("../run/none")
    (tmp_path / "lost").symlink_to("/nowhere")
    found = paths(tmp_path, "/lost/x")
    assert found["/etc/resolv.conf"].file
    assert "/lost/x" in found


def test_a_file_where_a_directory_must_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("/file", "/file/below"):
        with pytest.raises(AgentError, match="InvalidMountPath"):
            paths(tmp_path, path)


def test_it_is_written_with_modes_whatever_the_umask(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    old = os.umask(0o077)
    try:
        rootfs.write(paths(tmp_path / "image", "/a/b").values(), tmp_path / "skel" / "1")
    finally:
        os.umask(old)
    made = tmp_path / "skel" / "1"
    assert (made / "a/b").stat().st_mode & 0o7777 == 0o755
    assert (made / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert (made / "etc/hosts").is_file()
