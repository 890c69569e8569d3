"""Directories of volumes: made, kept, adopted, removed by name only."""

import os
from pathlib import Path
from typing import Any

import pytest

from agent.errors import AgentError
from agent.images.view import ImageView
from agent.layout import Layout
from agent.users import Account
from agent.volumes import Volumes
from horchestra.kinds.persistentvolume import PersistentVolume


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(state=tmp_path)


def pv(name: str, uid: str, **spec: Any) -> PersistentVolume:
    return PersistentVolume.model_validate(
        {"metadata": {"name": name, "uid": uid}, "spec": {"size": 1, "node": "n", **spec}}
    )


def test_a_directory_that_nobody_here_made_is_never_taken(layout: Layout) -> None:
    volumes = Volumes(layout)
    foreign = layout.volumes / "u1"
    foreign.mkdir()
    (foreign / "data").touch()
    with pytest.raises(AgentError, match="ForeignDirectory"):
        volumes.ensure(pv("a", "u1"), "l")
    assert volumes.delete("u1", "l") is True  # nothing of ours is there
    assert (foreign / "data").exists()


def test_ownership_is_the_mount_paths_in_the_image_once(layout: Layout, tmp_path: Path) -> None:
    image = tmp_path / "image"
    (image / "data").mkdir(parents=True)
    (image / "data").chmod(0o1770)
    os.chown(image / "data", 12, 13)
    volumes = Volumes(layout)
    volumes.ensure(pv("a", "u1"), "l")
    for account in (Account(5, 6), Account(7, 8)):
        volumes.prepare("u1", "/data", "", account, None, ImageView([image]))
        status = (layout.volumes / "u1").stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (12, 13, 0o1770)


def test_a_sub_path_is_made_and_never_leads_out(layout: Layout, tmp_path: Path) -> None:
    volumes, view = Volumes(layout), ImageView([tmp_path])
    volumes.ensure(pv("a", "u1"), "l")
    volumes.prepare("u1", "/data", "x/./y", Account(5, 6), None, view)
    assert (layout.volumes / "u1/x/y").stat().st_uid == 5
    (layout.volumes / "u1/out").symlink_to("/etc")
    with pytest.raises(AgentError, match="InvalidSubPath"):
        volumes.prepare("u1", "/data", "out/z", Account(5, 6), None, view)
    assert not Path("/etc/z").exists()


def test_fs_group_follows_no_symlink(layout: Layout, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch()
    volumes = Volumes(layout)
    volumes.ensure(pv("a", "u1"), "l")
    (layout.volumes / "u1/link").symlink_to(outside)
    (layout.volumes / "u1/file").touch(mode=0o700)
    volumes.prepare("u1", "/data", "", Account(5, 6), 4242, ImageView([tmp_path]))
    assert outside.stat().st_gid == 0
    status = (layout.volumes / "u1/file").stat()
    assert (status.st_gid, status.st_mode & 0o070) == (4242, 0o070)


def test_deletion_asks_for_the_same_lineage_and_follows_no_symlink(layout: Layout, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    volumes = Volumes(layout)
    volumes.ensure(pv("a", "u1"), "l1")
    (layout.volumes / "u1/link").symlink_to(outside)
    (layout.volumes / "u1/deep").mkdir()
    assert volumes.delete("u1", "l2") is False
    assert (layout.volumes / "u1/deep").exists()
    assert volumes.delete("u1", "l1") is True
    assert not (layout.volumes / "u1").exists()
    assert (outside / "kept").exists()


def test_only_kept_data_that_nobody_owns_is_adopted(layout: Layout) -> None:
    volumes = Volumes(layout)
    volumes.ensure(pv("a", "u1"), "l")
    (layout.volumes / "u1/data").touch()
    with pytest.raises(AgentError, match="VolumeNotAdoptable"):
        volumes.ensure(pv("b", "u2", adopt="u1"), "l")
    volumes.retire("u1")
    assert volumes.previous("a", "u9") == "u1"
    assert [report.phase for report in volumes.report([], {})] == ["Retained"]
    volumes.ensure(pv("b", "u2", adopt="u1"), "l")
    assert (layout.volumes / "u2/data").exists()
    assert set(volumes.all()) == {"u2"}
    volumes.ensure(pv("b", "u2"), "l")  # the manifest from before the adoption
    assert (layout.volumes / "u2/data").exists()
    assert set(volumes.all()) == {"u2"}


def test_a_lost_directory_is_not_quietly_made_empty_again(layout: Layout) -> None:
    volumes = Volumes(layout)
    volumes.ensure(pv("a", "u1"), "l")
    (layout.volumes / "u1").rmdir()
    with pytest.raises(AgentError, match="VolumeLost"):
        volumes.ensure(pv("a", "u1"), "l")
