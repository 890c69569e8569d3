"""Layers that try to reach the host, one trick at a time: refused or kept inside, the host untouched."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.errors import AgentError
from agent.images.layers import LayerExtractor
from agent.images.view import ImageView
from tests.lab.oci import add_directory, add_file, add_hardlink, add_symlink
from tests.unit.agent.images.unpacker import Unpacker, tar_bytes


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A directory beside the layers, which stands for the host."""
    outside = tmp_path / "host"
    (outside / "cron.d").mkdir(parents=True)
    (outside / "shadow").write_bytes(b"secret")
    return outside


@pytest.fixture
def untouched(host: Path):
    def picture() -> list[tuple[str, int, int, int]]:
        paths = [host, *sorted(host.rglob("*"))]
        return [(str(p), p.lstat().st_mtime_ns, p.lstat().st_nlink, p.lstat().st_mode) for p in paths]

    before = picture()
    yield
    assert picture() == before
    assert (host / "shadow").read_bytes() == b"secret"


REFUSED: dict[str, Callable[[tarfile.TarFile, Path], object]] = {
    "a file name with dots": lambda tar, host: add_file(tar, "../host/evil"),
    "dots in the middle": lambda tar, host: add_file(tar, "a/../../host/evil"),
    "a directory name with dots": lambda tar, host: add_directory(tar, "../host/cron.d", mode=0o777),
    "a symlink name with dots": lambda tar, host: add_symlink(tar, "../host/evil", "/"),
    "a hard link target with dots": lambda tar, host: add_hardlink(tar, "loot", "../../../../../host/shadow"),
    "a hard link to an absolute host path": lambda tar, host: add_hardlink(tar, "loot", str(host / "shadow")),
    "a hard link through an absolute symlink": lambda tar, host: (
        add_symlink(tar, "out", str(host)),
        add_hardlink(tar, "loot", "out/shadow"),
    ),
    "a hard link through a relative symlink": lambda tar, host: (
        add_symlink(tar, "out", "../host"),
        add_hardlink(tar, "loot", "out/shadow"),
    ),
    "a hard link to the root": lambda tar, host: add_hardlink(tar, "loot", "/"),
    "a hard link to a directory": lambda tar, host: (add_directory(tar, "d"), add_hardlink(tar, "loot", "d")),
    "a hard link to a later entry": lambda tar, host: (add_hardlink(tar, "loot", "later"), add_file(tar, "later")),
    "a hard link over its target's directory": lambda tar, host: (
        add_file(tar, "d/f"),
        add_hardlink(tar, "d", "d/f"),
    ),
    "a whiteout name with dots": lambda tar, host: add_file(tar, "../host/.wh.shadow"),
    "a whiteout of nothing": lambda tar, host: add_file(tar, "d/.wh."),
    "a whiteout of the directory itself": lambda tar, host: add_file(tar, "d/.wh.."),
    "a whiteout of the parent": lambda tar, host: add_file(tar, "d/.wh..."),
    "the root as a symlink": lambda tar, host: add_symlink(tar, ".", str(host)),
    "the root as a symlink, written /": lambda tar, host: add_symlink(tar, "/", str(host)),
    "the root as a file": lambda tar, host: add_file(tar, ".", b""),
    "a file as a directory": lambda tar, host: (add_file(tar, "f"), add_file(tar, "f/x")),
    "a device as a directory": lambda tar, host: (_device(tar, "f", 1, 3), add_file(tar, "f/x")),
    "symlinks in a circle": lambda tar, host: (
        add_symlink(tar, "a", "b"),
        add_symlink(tar, "b", "a"),
        add_file(tar, "a/x"),
    ),
    "symlinks that double": lambda tar, host: (
        *(add_symlink(tar, f"s{at}", f"s{at + 1}/s{at + 1}") for at in range(30)),
        add_symlink(tar, "s30", "."),
        add_file(tar, "s0/x"),
    ),
    "a name too long for any file system": lambda tar, host: add_file(tar, "n" * 256),
    "a path too long for any program": lambda tar, host: add_file(tar, "/".join(["d" * 100] * 41)),
    "a path too deep": lambda tar, host: add_file(tar, "/".join(["d"] * 300)),
    "a symlink target too long": lambda tar, host: add_symlink(tar, "a", "t" * 5000),
    "an owner that means 'unchanged'": lambda tar, host: add_file(tar, "a", uid=0xFFFFFFFF),
    "a negative owner": lambda tar, host: add_file(tar, "a", gid=-2),
    "a device number out of range": lambda tar, host: _device(tar, "a", 1 << 20, 1),
    "a capability that is none": lambda tar, host: add_file(
        tar, "a", pax_headers={"SCHILY.xattr.security.capability": "full"}
    ),
    "a sparse file": lambda tar, host: add_file(tar, "a", pax_headers={"GNU.sparse.major": "1"}),
    "an entry of unknown type": lambda tar, host: _typed(tar, "a", b"Z"),
}


def _device(tar: tarfile.TarFile, name: str, major: int, minor: int) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, major, minor
    tar.addfile(info)


def _typed(tar: tarfile.TarFile, name: str, kind: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.type = kind
    tar.addfile(info)


@pytest.mark.parametrize("trick", REFUSED)
@pytest.mark.usefixtures("untouched")
def test_an_attack_is_refused(unpacker: Unpacker, host: Path, trick: str) -> None:
    with pytest.raises(AgentError) as caught:
        unpacker.unpack(_gnu(lambda tar: REFUSED[trick](tar, host)))
    assert caught.value.reason == "InvalidImage"


def _gnu(write: Callable[[tarfile.TarFile], object]) -> bytes:
    """PAX where it can, GNU where the value needs it (negative numbers, wide device numbers)."""
    try:
        return tar_bytes(write)
    except ValueError:
        return tar_bytes(write, tarfile.GNU_FORMAT)


INSIDE: dict[str, tuple[Callable[[tarfile.TarFile, Path], object], Callable[[Path], str]]] = {
    "an absolute name": (lambda tar, host: add_file(tar, str(host / "evil")), lambda host: str(host / "evil")),
    "a file through an absolute symlink": (
        lambda tar, host: (add_symlink(tar, "out", str(host)), add_file(tar, "out/cron.d/evil")),
        lambda host: str(host / "cron.d/evil"),
    ),
    "a file through a relative symlink": (
        lambda tar, host: (add_symlink(tar, "out", "../../../host"), add_file(tar, "out/cron.d/evil")),
        lambda host: "/host/cron.d/evil",
    ),
    "a whiteout through a symlink": (
        lambda tar, host: (add_symlink(tar, "out", str(host)), add_file(tar, "out/.wh.shadow")),
        lambda host: str(host / "shadow"),
    ),
    "a file over a symlink": (
        lambda tar, host: (add_symlink(tar, "out", str(host / "shadow")), add_file(tar, "out", b"evil")),
        lambda host: "/out",
    ),
    "a directory over a symlink": (
        lambda tar, host: (
            add_symlink(tar, "out", str(host)),
            add_directory(tar, "out", mode=0o777),
            add_file(tar, "out/x"),
        ),
        lambda host: "/out/x",
    ),
    "a hard link to a symlink": (
        lambda tar, host: (add_symlink(tar, "out", str(host / "shadow")), add_hardlink(tar, "loot", "out")),
        lambda host: "/loot",
    ),
    "a device over a symlink": (
        lambda tar, host: (add_symlink(tar, "out", str(host / "shadow")), _device(tar, "out", 1, 3)),
        lambda host: "/out",
    ),
}


@pytest.mark.parametrize("trick", INSIDE)
@pytest.mark.usefixtures("untouched")
def test_an_attack_ends_inside_the_layer(unpacker: Unpacker, host: Path, trick: str) -> None:
    write, place = INSIDE[trick]
    root = unpacker.unpack(lambda tar: write(tar, host))
    assert os.path.lexists(f"{root}{place(host)}")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("target", ["{host}", "../host", "../../../../../../{host}"])
def test_a_symlink_of_a_lower_layer_leads_no_upper_layer_out(unpacker: Unpacker, host: Path, target: str) -> None:
    unpacker.unpack(lambda tar: add_symlink(tar, "etc", target.format(host=host)))
    unpacker.unpack(lambda tar: (add_file(tar, "etc/cron.d/evil"), add_file(tar, "etc/.wh.shadow")))
    with pytest.raises(AgentError, match="no layer holds"):
        unpacker.unpack(lambda tar: add_hardlink(tar, "loot", "etc/shadow"))
    assert unpacker.view.exists("/etc/cron.d/evil")


@pytest.mark.usefixtures("untouched")
def test_the_opaque_mark_through_a_symlink_stays_inside(unpacker: Unpacker, host: Path) -> None:
    unpacker.unpack(lambda tar: (add_symlink(tar, "out", str(host)), add_file(tar, "out/.wh..wh..opq")))
    assert "trusted.overlay.opaque" not in os.listxattr(host)


def test_too_many_entries_are_refused(tmp_path: Path) -> None:
    data = tar_bytes(lambda tar: [add_file(tar, f"f{at}") for at in range(11)])
    with pytest.raises(AgentError, match="more than 10 entries"):
        LayerExtractor(tmp_path, lambda: ImageView([]), max_entries=10).extract([data])


@pytest.mark.parametrize("cut", [100, 511, 513, 700, 1500])
def test_a_layer_cut_in_the_middle_is_refused(unpacker: Unpacker, cut: int) -> None:
    with pytest.raises(AgentError, match="InvalidImage"):
        unpacker.unpack(tar_bytes(lambda tar: add_file(tar, "a", b"x" * 2000))[:cut])


@pytest.mark.parametrize(
    "record",
    [
        b"9999 path=x\n",
        b"-5 path=x\n",
        b"0 path=x\n",
        b"11 path=x\n",
        b"x",
        b"8 path\n\n",
        b"12 size=-123\n",
        b"12 size=1e99\n",
    ],
)
def test_a_broken_pax_header_is_refused(unpacker: Unpacker, record: bytes) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("header")
        info.type, info.size = b"x", len(record)
        tar.addfile(info, io.BytesIO(record))
        add_file(tar, "a", b"x")
    with pytest.raises(AgentError, match="InvalidImage"):
        unpacker.unpack(buffer.getvalue())


def test_an_endless_pax_header_is_refused_before_it_is_read(unpacker: Unpacker) -> None:
    info = tarfile.TarInfo("header")
    info.type, info.size = b"x", 1 << 40
    with pytest.raises(AgentError, match="extension header of"):
        unpacker.unpack(info.tobuf(tarfile.GNU_FORMAT))
