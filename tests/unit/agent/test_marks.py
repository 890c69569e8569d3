"""Changes by hand are seen without reading files."""

from pathlib import Path

import pytest

from agent import marks


@pytest.mark.parametrize("change", ["edit", "replace", "delete", "drop-in", "nothing"])
def test_a_change_by_hand_leaves_another_mark(tmp_path: Path, change: str) -> None:
    unit = tmp_path / "web.service"
    unit.write_text("[Service]\n")
    paths = marks.of_unit(tmp_path, unit.name)
    before = marks.take(paths)
    match change:
        case "edit":
            unit.write_text("[Service]\nNice=1\n")
        case "replace":
            (tmp_path / "new").write_text("[Service]\n")
            (tmp_path / "new").rename(unit)
        case "delete":
            unit.unlink()
        case "drop-in":
            (tmp_path / "web.service.d").mkdir()
    assert (marks.take(paths) == before) == (change == "nothing")


def test_a_mount_leaves_another_mark() -> None:
    assert marks.take([Path("/proc")]) != marks.take([Path("/")])
