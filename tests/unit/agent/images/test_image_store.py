import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from agent.errors import AgentError
from agent.images.reference import ImageReference
from agent.images.store import ImageStore

REFERENCE = ImageReference.parse("app:1")


def digest(number: int) -> str:
    return f"sha256:{number:064x}"


def commit(store: ImageStore, key: str) -> Path:
    with store.workspace() as tree:
        (tree / "content").write_text(key)
        return store.commit_layer(tree, key)


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path)


def test_an_image_is_found_again_after_a_restart(store: ImageStore, tmp_path: Path) -> None:
    layers = [commit(store, "top"), commit(store, "base")]
    image = store.add_image(REFERENCE, digest(1), {"Cmd": ["/run"]}, layers)
    assert image.layers == tuple(layers)
    assert image.config.cmd == ("/run",)
    assert store.image(digest(1)) == image
    assert ImageStore(tmp_path).image(digest(1)) == image
    assert ImageStore(tmp_path).images() == [image]


def test_layer_paths_are_short(store: ImageStore) -> None:
    assert len(commit(store, "a").name) <= 8


def test_a_layer_directory_is_out_of_reach_of_other_users(store: ImageStore) -> None:
    assert commit(store, "a").parent.stat().st_mode & 0o077 == 0


def test_a_layer_is_stored_once(store: ImageStore) -> None:
    first = commit(store, "same")
    assert commit(store, "same") == first
    assert store.layer("other", "same") == first
    assert store.layer("other") is None
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_a_layer_used_twice_is_listed_once_at_its_topmost_place(store: ImageStore) -> None:
    a, b = commit(store, "a"), commit(store, "b")
    assert store.add_image(REFERENCE, digest(1), None, [a, b, a]).layers == (a, b)


def test_a_workspace_that_fails_leaves_nothing(store: ImageStore, tmp_path: Path) -> None:
    def fail() -> None:
        with store.workspace() as tree:
            (tree / "half").mkdir()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list((tmp_path / "l").iterdir()) == []


def test_removing_keeps_the_layers_of_kept_images(store: ImageStore, tmp_path: Path) -> None:
    shared, mine, other, loose = (commit(store, key) for key in ("shared", "mine", "other", "loose"))
    kept = store.add_image(REFERENCE, digest(1), None, [mine, shared])
    store.add_image(REFERENCE, digest(2), None, [other, shared])
    assert store.remove_unused({digest(1), digest(9)}) == [digest(2)]
    assert sorted((tmp_path / "l").iterdir()) == sorted([shared, mine])
    assert not loose.exists()
    assert store.image(digest(2)) is None
    assert store.layer("other") is None
    assert ImageStore(tmp_path).images() == [kept]


def test_layers_of_a_running_pull_are_not_removed(store: ImageStore) -> None:
    with store.pinned(["coming", "here"]):
        here = commit(store, "here")
        store.remove_unused(set())
        coming = commit(store, "coming")
        store.remove_unused(set())
        assert here.exists()
        assert coming.exists()
    store.remove_unused(set())
    assert not here.exists()


def test_what_a_crash_left_is_removed_and_only_that(store: ImageStore, tmp_path: Path) -> None:
    layer = commit(store, "a")
    image = store.add_image(REFERENCE, digest(1), None, [layer])
    gone = commit(store, "gone")
    store.add_image(REFERENCE, digest(2), None, [gone])
    trees, layers, manifests = tmp_path / "l", tmp_path / "images/layers", tmp_path / "images/manifests"
    (trees / ".new-half/deep").mkdir(parents=True)
    (trees / "0badcafe").mkdir()
    (layers / "deadbeef.json").write_text('{"key": "no tree"}')
    (layers / f"{gone.name}.json").write_text("")
    (layers / "x.new").write_text("half")
    (manifests / "bad.json").write_text('{"digest": 1')
    (manifests / "odd.json").write_text(json.dumps({"digest": digest(3), "reference": "", "config": [], "layers": 3}))
    again = ImageStore(tmp_path)
    assert again.images() == [image]
    assert list(trees.iterdir()) == [layer]
    assert [path.name for path in layers.iterdir()] == [f"{layer.name}.json"]
    assert [path.name for path in manifests.iterdir()] == [f"{digest(1).replace(':', '-')}.json"]


def test_a_full_disk_is_said_before_anything_is_unpacked(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    store = ImageStore(tmp_path, reserve=1 << 20)
    store.require_space(1 << 20)
    with pytest.raises(AgentError, match="MiB free, the image needs more than") as caught:
        store.require_space(free + (1 << 30))
    assert caught.value.reason == "DiskFull"


CRASHER = """
    import itertools, os, sys
    from pathlib import Path
    from agent.images.reference import ImageReference
    from agent.images.store import ImageStore
    store = ImageStore(Path(sys.argv[1]))
    print("ready", flush=True)
    for number in itertools.count():
        with store.workspace() as tree:
            for name in range(20):
                (tree / str(name)).write_text("x")
            (tree / "last").write_text("complete")
            layer = store.commit_layer(tree, f"key {number}")
        digest = f"sha256:{number:064x}"
        store.add_image(ImageReference.parse("app:1"), digest, None, [layer])
        if number % 3 == 2:
            store.remove_unused({digest})
        print(digest, flush=True)
"""


@pytest.mark.parametrize("steps", [1, 3, 6, 7])
def test_a_kill_at_any_point_leaves_only_whole_images(tmp_path: Path, steps: int) -> None:
    command = [sys.executable, "-c", textwrap.dedent(CRASHER), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(steps + 1)]
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
    last = (rest or [lines[-1].strip()])[-1]
    store = ImageStore(tmp_path)
    assert store.image(last) is not None
    for image in store.images():
        assert [(layer / "last").read_text() for layer in image.layers] == ["complete"]
    trees = {path.name for path in (tmp_path / "l").iterdir()}
    assert trees == {path.stem for path in (tmp_path / "images/layers").iterdir()}
