"""Project quota: the kernel's structures, ids, and file systems that have none (as the one the tests run on)."""

import ctypes
import os
from pathlib import Path

import pytest

from agent import quota
from agent.layout import Layout
from agent.volumes import Volumes
from horchestra.kinds.persistentvolume import PersistentVolume


def kept(_: int) -> None:
    pytest.fail("an id was given though nothing enforces it")


def test_the_structures_are_the_kernels() -> None:
    assert ctypes.sizeof(quota.FileAttributes) == 28
    assert quota.FileAttributes.projid.offset == 12
    assert ctypes.sizeof(quota.DiskQuota) == 112
    assert (quota.DiskQuota.blk_hardlimit.offset, quota.DiskQuota.icount.offset) == (8, 48)
    assert quota.QuotaState.flags.offset == 2


def test_an_id_is_the_first_that_neither_a_volume_nor_the_file_system_has() -> None:
    first = quota.PROJECTS[0]
    assert quota.free(set(), lambda _: False) == first
    assert quota.free({0, first, first + 2}, lambda number: number == first + 1) == first + 3
    assert quota.free(quota.PROJECTS, lambda _: False) is None


def test_ids_are_project_ids() -> None:
    assert 0 < quota.PROJECTS[0] <= quota.PROJECTS[-1] < 2**31


@pytest.mark.parametrize(
    ("size", "blocks"), [(1, 1), (512, 1), (513, 2), (10 << 30, 20 << 20), (0, 1), (2**73, 2**54 - 1)]
)
def test_a_limit_is_rounded_up_and_never_wraps_round_to_none(size: int, blocks: int) -> None:
    assert quota.blocks(size) == blocks


@pytest.mark.parametrize("path", ["/proc", "/dev"])
def test_a_file_system_without_project_quota_says_so_and_nothing_is_given(path: str) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        outcome = quota.limit(directory, 1, 0, set(), kept)
    finally:
        os.close(directory)
    assert not outcome.enforced
    assert outcome.reason


def test_a_volume_is_made_and_reported_unenforced_where_there_is_no_quota(tmp_path: Path) -> None:
    layout = Layout(state=Path("/dev/shm") / tmp_path.name)  # tmpfs has no project quota
    try:
        volumes = Volumes(layout)
        for size in ("1Mi", "2Mi", "no size"):
            volume = {"metadata": {"name": "a", "uid": "u1"}, "spec": {"size": size, "node": "n"}}
            volumes.ensure(PersistentVolume.model_validate(volume), "l")
        assert [report.quota_enforced for report in volumes.report([], {})] == [False]
        assert volumes.all()["u1"].project == 0
        assert volumes.delete("u1", "l")
    finally:
        layout.volumes.rmdir()
        layout.state.rmdir()


def test_a_volume_known_from_before_quotas_is_still_known(tmp_path: Path) -> None:
    volumes = Volumes(Layout(state=tmp_path))
    (tmp_path / "volumes/u1.json").write_text(
        '{"uid": "u1", "name": "a", "lineage": "l", "owned": true, "gone": false}'
    )
    assert volumes.all()["u1"].project == 0
