from pathlib import Path

import pytest

from agent.errors import AgentError
from agent.images.view import ImageView
from tests.lab.oci import add_directory, add_file, add_symlink
from tests.unit.agent.images.unpacker import Unpacker


@pytest.fixture
def view(unpacker: Unpacker) -> ImageView:
    unpacker.unpack(
        lambda tar: (
            add_directory(tar, "etc", mode=0o700, uid=1),
            add_file(tar, "etc/passwd", b"root:x:0:0\n"),
            add_file(tar, "etc/shells", b"lower"),
            add_directory(tar, "usr/bin"),
            add_file(tar, "usr/bin/sh", b"#!", mode=0o755),
            add_symlink(tar, "bin", "usr/bin"),
            add_directory(tar, "var/run"),
            add_file(tar, "was-file"),
            add_directory(tar, "was-directory"),
            add_file(tar, "was-directory/f"),
        ),
        lambda tar: (
            add_directory(tar, "etc", mode=0o755, uid=2),
            add_file(tar, "etc/shells", b"upper"),
            add_file(tar, "etc/.wh.passwd"),
            add_symlink(tar, "etc/up", "../../../etc/shells"),
            add_symlink(tar, "etc/absolute", "/bin/sh"),
            add_symlink(tar, "loop", "loop/x"),
            add_symlink(tar, "dangling", "/nowhere"),
            add_directory(tar, "was-file"),
            add_file(tar, "was-file/f"),
            add_file(tar, "was-directory"),
        ),
    )
    return unpacker.view


def test_the_topmost_layer_wins(view: ImageView) -> None:
    assert view.read("/etc/shells", 100) == b"upper"
    status = view.stat("/etc")
    assert status is not None
    assert (status.st_mode & 0o7777, status.st_uid) == (0o755, 2)


def test_symlinks_are_resolved_inside_the_root(view: ImageView) -> None:
    assert view.resolve("/bin/sh") == "/usr/bin/sh"
    assert view.resolve("etc/up") == "/etc/shells"
    assert view.resolve("/etc/absolute") == "/usr/bin/sh"
    assert view.resolve("/../../etc/./shells") == "/etc/shells"
    assert view.resolve("/bin/../../etc") == "/etc"
    assert view.readlink("/bin") == "usr/bin"
    assert view.readlink("/usr") is None


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/etc/shells/x",
        "/etc/shells/",
        "/etc/shells/..",
        "/loop",
        "/dangling",
        "/none",
        "/a\0b",
        "/" + "n" * 300,
    ],
)
def test_what_a_program_could_not_open_does_not_exist(view: ImageView, path: str) -> None:
    assert not view.exists(path)
    assert view.stat(path) is None
    assert view.resolve(path) is None
    with pytest.raises(FileNotFoundError):
        view.read(path, 10)


def test_a_file_and_a_directory_replace_each_other(view: ImageView) -> None:
    assert view.exists("/was-file/f")
    assert not view.exists("/was-directory/f")
    assert view.exists("/was-directory")


def test_a_file_over_the_limit_and_a_directory_are_not_read(view: ImageView) -> None:
    with pytest.raises(AgentError, match="more than 4"):
        view.read("/etc/shells", 4)
    with pytest.raises(AgentError, match="not a regular file"):
        view.read("/etc", 4)


def test_the_root_exists_and_an_image_without_layers_is_empty(view: ImageView) -> None:
    assert view.resolve("/") == "/"
    assert view.stat("/") is not None
    assert not ImageView([]).exists("/")


def test_a_link_itself_has_a_status(view: ImageView, tmp_path: Path) -> None:
    status = view.lstat("/dangling")
    assert status is not None
    assert view.locate("/dangling") == tmp_path / "layer-1/dangling"
