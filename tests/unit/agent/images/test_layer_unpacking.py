"""What a well-meant layer becomes on disk."""

import os
import stat
import struct
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import AgentError
from agent.images.layers import LayerExtractor
from agent.images.tar import TarReader
from agent.images.view import ImageView, is_opaque, is_whiteout
from tests.lab.oci import add_directory, add_file, add_hardlink, add_symlink
from tests.unit.agent.images.unpacker import Unpacker, tar_bytes

CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)  # cap_net_bind_service=ep


def add(tar: tarfile.TarFile, name: str, kind: bytes, **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    tar.addfile(info)


def test_files_directories_links_devices_and_fifos_are_made_with_their_metadata(unpacker: Unpacker) -> None:
    def write(tar: tarfile.TarFile) -> None:
        add_directory(tar, "./", mode=0o751)
        add_directory(tar, "bin", mode=0o500, uid=3, gid=4, mtime=1000)
        add_file(tar, "bin/su", b"program", mode=0o4755, uid=1, gid=2, mtime=1234)
        add_hardlink(tar, "bin/same", "./bin/su")
        add_symlink(tar, "bin/sh", "/bin/su", uid=7)
        add(tar, "null", tarfile.CHRTYPE, devmajor=1, devminor=3, mode=0o666)
        add(tar, "disk", tarfile.BLKTYPE, devmajor=8, devminor=300, mode=0o660)
        add(tar, "pipe", tarfile.FIFOTYPE, mode=0o622)

    root = unpacker.unpack(write)
    assert stat.S_IMODE(root.stat().st_mode) == 0o751
    directory = (root / "bin").stat()
    assert (stat.S_IMODE(directory.st_mode), directory.st_uid, directory.st_gid) == (0o500, 3, 4)
    assert directory.st_mtime == 1000
    program = (root / "bin/su").stat()
    assert (stat.S_IMODE(program.st_mode), program.st_uid, program.st_gid) == (0o4755, 1, 2)
    assert (program.st_mtime, program.st_nlink) == (1234, 2)
    assert (root / "bin/same").samefile(root / "bin/su")
    assert os.readlink(root / "bin/sh") == "/bin/su"
    assert (root / "bin/sh").lstat().st_uid == 7
    assert (root / "null").stat().st_rdev == os.makedev(1, 3)
    assert stat.S_IMODE((root / "null").stat().st_mode) == 0o666
    assert (root / "disk").stat().st_rdev == os.makedev(8, 300)
    assert stat.S_ISFIFO((root / "pipe").stat().st_mode)
    assert not unpacker.extractors[0].depends_on_lower


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_unicode_and_numbers_beyond_octal_are_read(unpacker: Unpacker, kind: int) -> None:
    deep = "/".join(["directory-" + "d" * 90] * 12)
    name = "ünï-" + "n" * 190

    def write(tar: tarfile.TarFile) -> None:
        add_directory(tar, deep)
        add_file(tar, f"{deep}/{name}", b"x", uid=3_000_000, gid=4_000_000_000, mtime=2**34 - 1)
        add_symlink(tar, "link", "t" * 300)
        add_hardlink(tar, "hard", f"{deep}/{name}")

    root = unpacker.unpack(tar_bytes(write, kind))
    status = (root / deep / name).stat()
    assert (status.st_uid, status.st_gid, status.st_nlink) == (3_000_000, 4_000_000_000, 2)
    assert os.readlink(root / "link") == "t" * 300


def test_names_that_are_not_utf8_survive(unpacker: Unpacker) -> None:
    root = unpacker.unpack(lambda tar: add_file(tar, os.fsdecode(b"caf\xe9"), b"x"))
    assert os.listdir(os.fsencode(root)) == [b"caf\xe9"]


def test_file_capabilities_acls_and_user_attributes_are_kept_and_others_dropped(unpacker: Unpacker) -> None:
    headers = {
        "SCHILY.xattr.security.capability": CAPABILITY.decode(),
        "SCHILY.xattr.user.note": "hello",
        "SCHILY.xattr.trusted.overlay.opaque": "y",
        "SCHILY.xattr.trusted.overlay.redirect": "/etc",
        "SCHILY.xattr.user.overlay.opaque": "y",
        "SCHILY.xattr.security.selinux": "system_u:object_r:bin_t:s0",
    }

    def write(tar: tarfile.TarFile) -> None:
        add_file(tar, "ping", b"x", uid=5, pax_headers=headers)
        add_directory(
            tar, "d", pax_headers={"SCHILY.xattr.user.note": "dir", "SCHILY.xattr.trusted.overlay.opaque": "y"}
        )

    root = unpacker.unpack(write)
    assert sorted(os.listxattr(root / "ping")) == ["security.capability", "user.note"]
    assert os.getxattr(root / "ping", "security.capability") == CAPABILITY
    assert os.listxattr(root / "d") == ["user.note"]


def test_a_whiteout_hides_the_lower_entry_wherever_it_stands(unpacker: Unpacker) -> None:
    unpacker.unpack(lambda tar: (add_directory(tar, "d"), add_file(tar, "d/gone"), add_file(tar, "d/stays")))
    root = unpacker.unpack(lambda tar: (add_directory(tar, "d"), add_file(tar, "d/.wh.gone")))
    assert is_whiteout((root / "d/gone").lstat())
    assert not (root / "d/.wh.gone").exists()
    assert not unpacker.view.exists("/d/gone")
    assert unpacker.view.exists("/d/stays")


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2), (2, 3, 0, 1)])
def test_opaque_marks_and_whiteouts_spare_entries_of_their_layer(unpacker: Unpacker, order: tuple[int, ...]) -> None:
    steps = [
        lambda tar: add_file(tar, "d/new", b"new"),
        lambda tar: add_file(tar, "d/.wh..wh..opq"),
        lambda tar: add_symlink(tar, "d/old-directory", "new"),
        lambda tar: add_file(tar, "d/.wh.new"),
    ]
    unpacker.unpack(
        lambda tar: (
            add_directory(tar, "d"),
            add_directory(tar, "d/old-directory"),
            add_file(tar, "d/old-directory/x"),
            add_file(tar, "d/new", b"old"),
            add_file(tar, "d/old"),
        )
    )
    root = unpacker.unpack(lambda tar: (add_directory(tar, "d"), *(steps[at](tar) for at in order)))
    assert is_opaque(str(root / "d"))
    assert sorted(os.listdir(root / "d")) == ["new", "old-directory"]
    assert unpacker.view.read("/d/new", 10) == b"new"
    assert unpacker.view.readlink("/d/old-directory") == "new"
    assert not unpacker.view.exists("/d/old")


def test_a_directory_that_replaces_a_deleted_one_does_not_show_its_old_content(unpacker: Unpacker) -> None:
    unpacker.unpack(lambda tar: (add_directory(tar, "d"), add_file(tar, "d/old")))
    unpacker.unpack(lambda tar: (add_file(tar, ".wh.d"), add_directory(tar, "d"), add_file(tar, "d/new")))
    assert unpacker.view.exists("/d/new")
    assert not unpacker.view.exists("/d/old")


def test_an_opaque_root_hides_all_lower_layers(unpacker: Unpacker) -> None:
    unpacker.unpack(lambda tar: add_file(tar, "old"))
    unpacker.unpack(lambda tar: (add_file(tar, ".wh..wh..opq"), add_file(tar, "new")))
    assert unpacker.view.exists("/new")
    assert not unpacker.view.exists("/old")


def test_the_last_of_several_entries_of_one_name_wins(unpacker: Unpacker) -> None:
    def write(tar: tarfile.TarFile) -> None:
        add_file(tar, "a", b"1")
        add_file(tar, "a", b"2")
        add_directory(tar, "b")
        add_file(tar, "b/inside")
        add_file(tar, "b", b"file")
        add_symlink(tar, "c", "a")
        add_directory(tar, "c")
        add_file(tar, "c/inside")
        add_directory(tar, "d", mode=0o700)
        add_file(tar, "d/kept")
        add_directory(tar, "d", mode=0o711)

    root = unpacker.unpack(write)
    assert (root / "a").read_bytes() == b"2"
    assert (root / "b").read_bytes() == b"file"
    assert (root / "c/inside").is_file()
    assert not (root / "c").is_symlink()
    assert (root / "d/kept").exists()
    assert stat.S_IMODE((root / "d").stat().st_mode) == 0o711


def test_a_parent_without_an_entry_takes_the_lower_layers_owner_and_mode(unpacker: Unpacker) -> None:
    unpacker.unpack(lambda tar: add_directory(tar, "srv", mode=0o1770, uid=10, gid=20, mtime=99))
    root = unpacker.unpack(lambda tar: add_file(tar, "srv/new/file"))
    status = (root / "srv").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, status.st_mtime) == (0o1770, 10, 20, 99)
    assert stat.S_IMODE((root / "srv/new").stat().st_mode) == 0o755
    assert unpacker.extractors[1].depends_on_lower


def test_a_parent_that_is_a_symlink_in_a_lower_layer_is_followed(unpacker: Unpacker) -> None:
    unpacker.unpack(
        lambda tar: (
            add_directory(tar, "usr/lib", mode=0o711),
            add_symlink(tar, "lib", "usr/lib"),
            add_file(tar, "usr/lib/a"),
        )
    )
    root = unpacker.unpack(lambda tar: (add_file(tar, "lib/b"), add_file(tar, "lib/.wh.a")))
    assert not (root / "lib").exists()
    assert (root / "usr/lib/b").is_file()
    assert stat.S_IMODE((root / "usr/lib").stat().st_mode) == 0o711
    assert unpacker.view.exists("/lib/b")
    assert not unpacker.view.exists("/lib/a")


def test_a_parent_that_the_same_layer_deletes_is_made_anew(unpacker: Unpacker) -> None:
    unpacker.unpack(lambda tar: (add_directory(tar, "usr/lib"), add_symlink(tar, "lib", "usr/lib")))
    root = unpacker.unpack(lambda tar: (add_file(tar, ".wh.lib"), add_file(tar, "lib/b")))
    assert (root / "lib/b").is_file()
    assert not (root / "usr").exists()


def test_a_hard_link_to_a_lower_file_carries_the_file_up_with_all_its_metadata(unpacker: Unpacker) -> None:
    headers = {"SCHILY.xattr.security.capability": CAPABILITY.decode()}
    unpacker.unpack(
        lambda tar: (
            add_directory(tar, "bin", mode=0o711),
            add_file(tar, "bin/a", b"content", mode=0o4711, uid=9, pax_headers=headers),
        )
    )
    root = unpacker.unpack(lambda tar: add_hardlink(tar, "b", "bin/a"))
    status = (root / "b").stat()
    assert (root / "b").read_bytes() == b"content"
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_nlink) == (0o4711, 9, 2)
    assert os.getxattr(root / "b", "security.capability") == CAPABILITY
    assert (root / "bin/a").samefile(root / "b")
    assert stat.S_IMODE((root / "bin").stat().st_mode) == 0o711


def test_a_hard_link_to_what_the_layer_itself_deleted_is_refused(unpacker: Unpacker) -> None:
    unpacker.unpack(lambda tar: add_file(tar, "a", b"content"))
    with pytest.raises(AgentError, match="no layer holds"):
        unpacker.unpack(lambda tar: (add_file(tar, ".wh.a"), add_hardlink(tar, "b", "a")))


def test_an_empty_layer_and_bytes_after_the_end_are_fine(unpacker: Unpacker) -> None:
    unpacker.unpack(b"", tar_bytes(lambda tar: None), tar_bytes(lambda tar: add_file(tar, "a")) + b"rubbish" * 1000)
    assert unpacker.view.exists("/a")


def test_the_whole_stream_is_read_so_that_its_digest_is_known(tmp_path: Path) -> None:
    pieces = [tar_bytes(lambda tar: add_file(tar, "a")), b"after", b"more"]
    seen: list[bytes] = []
    LayerExtractor(tmp_path, lambda: ImageView([])).extract(seen.append(piece) or piece for piece in pieces)
    assert seen == pieces


def test_many_directories_need_few_descriptors(unpacker: Unpacker) -> None:
    def write(tar: tarfile.TarFile) -> None:
        for at in range(600):
            add_directory(tar, f"d{at}", mode=0o700)
        for at in range(600):
            add_file(tar, f"d{at}/f")
            add_hardlink(tar, f"d{at}/h", f"d{599 - at}/f") if at >= 300 else None

    before = len(os.listdir("/proc/self/fd"))
    root = unpacker.unpack(write)
    assert len(os.listdir("/proc/self/fd")) == before
    assert (root / "d599/h").samefile(root / "d0/f")


NAMES = st.sampled_from(["a", "b", "c", "d", ".wh.a", ".wh.b", ".wh..wh..opq", "..", ".", ""])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
ENTRIES = st.tuples(st.sampled_from("fdslhpx"), PATHS, st.one_of(PATHS, PATHS.map("/".__add__)))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(ENTRIES, max_size=8), min_size=1, max_size=3))
def test_any_mix_of_entries_unpacks_inside_its_root_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, stacks: list[list[tuple[str, str, str]]]
) -> None:
    directory = tmp_path_factory.mktemp("mix")
    outside = directory / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"host")
    before = sorted(os.walk(outside)), (outside / "a").stat().st_nlink, (outside / "a").stat().st_mtime_ns
    descriptors = len(os.listdir("/proc/self/fd"))
    inner = directory / "store"
    inner.mkdir()
    unpacker = Unpacker(inner)
    refusal = "InvalidImage"
    for stack in stacks:
        try:
            unpacker.unpack(lambda tar, stack=stack: [_write_entry(tar, *entry) for entry in stack])
        except AgentError as error:
            refusal = error.reason
            break
    assert refusal == "InvalidImage"
    assert sorted(os.walk(outside)) == before[0]
    assert ((outside / "a").stat().st_nlink, (outside / "a").stat().st_mtime_ns) == before[1:]
    assert len(os.listdir("/proc/self/fd")) == descriptors


def _write_entry(tar: tarfile.TarFile, kind: str, path: str, target: str) -> None:
    match kind:
        case "f":
            add_file(tar, path, target.encode())
        case "d":
            add_directory(tar, path)
        case "s":
            add_symlink(tar, path, target or "a")
        case "l":
            add_symlink(tar, path, f"../../../outside/{target}")
        case "h":
            add_hardlink(tar, path, target)
        case "p":
            add(tar, path, tarfile.FIFOTYPE)
        case "x":
            add_hardlink(tar, path, f"../outside/{target}")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=3000), st.integers(0, 511), st.binary(max_size=40))
def test_any_bytes_read_as_tar_end_in_entries_or_in_a_refusal(noise: bytes, at: int, patch: bytes) -> None:
    good = bytearray(tar_bytes(lambda tar: add_file(tar, "n" * 150, b"x" * 600, uid=2**30)))
    good[at : at + len(patch)] = patch
    for data in (noise, bytes(good)):
        with suppress(AgentError):
            for _ in TarReader([data]):
                pass
