"""Unpacked images on the node's disk, laid out so that images share layers and a power cut leaves nothing half done.

    <root>/l/<id>/                     one unpacked layer; the name is short for the 4 KB of overlayfs' mount options
    <root>/l/.new-*/                   being unpacked; removed at the next start
    <root>/images/layers/<id>.json     which content <id> holds; a tree without this record does not count
    <root>/images/manifests/<hex>.json an image: its layers and its configuration

A tree is synced before it is renamed, renamed before its record is written, and loses its record before it is removed.
"""

import ctypes
import errno
import json
import logging
import os
import secrets
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.errors import AgentError
from agent.images.config import ImageConfig
from agent.images.reference import ImageReference
from agent.images.transfers import Transfers

log = logging.getLogger("horchestra.images")

_NEW = ".new-"
_RESERVE = 256 << 20
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Image:
    """An image ready to be mounted. `digest` is what its name resolved to (of an index, when there is one).

    layers: directories for overlayfs, top first, each once.
    """

    reference: ImageReference
    digest: str
    config: ImageConfig
    layers: tuple[Path, ...]


class ImageStore:
    """The images under `root`. One process owns a store; threads may share it. `reserve`: disk bytes kept free.

    in_use: names below `l/` that are mounted or may be; they stay, also when what this store knew of them is damaged.
    """

    def __init__(self, root: Path, reserve: int = _RESERVE, in_use: frozenset[str] = frozenset()) -> None:
        self._trees = root / "l"
        self._layer_records = root / "images" / "layers"
        self._image_records = root / "images" / "manifests"
        self._reserve = reserve
        self._lock = threading.RLock()
        self._pins: Counter[str] = Counter()
        for directory in (self._trees, self._layer_records, self._image_records):
            # Not for other users: an image's set-uid programs must not be within their reach.
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._layers: dict[str, str] = {}
        self._images: dict[str, Image] = {}
        self._recover(in_use)
        self.transfers = Transfers()

    def close(self) -> None:
        """Ends the transfer threads; running transfers are aborted."""
        self.transfers.close()

    # Images

    def image(self, digest: str) -> Image | None:
        """The image with this manifest or index digest, if all of it is here."""
        return self._images.get(digest)

    def images(self) -> list[Image]:
        return list(self._images.values())

    def add_image(self, reference: ImageReference, digest: str, raw_config: Any, layers: Iterable[Path]) -> Image:
        """Records an image whose layers (top first) are in the store. Durable when it returns."""
        ids = list(dict.fromkeys(layer.name for layer in layers))  # overlayfs refuses a directory named twice
        with self._lock:
            record = {"digest": digest, "reference": str(reference), "config": raw_config, "layers": ids}
            image = self._image_of(record)
            _write_record(self._image_records / f"{_file_name(digest)}.json", record)
            self._images[digest] = image
            return image

    def remove_unused(self, keep: set[str], in_use: frozenset[str] = frozenset()) -> list[str]:
        """Removes all images but those with a digest in `keep`, then the layers no image and no running pull needs.

        The caller names every image that is mounted or may be mounted again. Returns the digests removed. Blocks while
        trees are deleted. Raises AgentError ImageStoreFailed; what could not be deleted goes at the next start.
        """
        with disk_failures_named():
            gone, doomed = self._forget_unused(keep, in_use)
            for tree in doomed:
                shutil.rmtree(tree)
        return gone

    def _forget_unused(self, keep: set[str], in_use: frozenset[str]) -> tuple[list[str], list[Path]]:
        """Digests of the images dropped, and the trees now without a name, to be deleted without holding the lock."""
        with self._lock:
            gone = sorted(set(self._images) - keep)
            for digest in gone:
                (self._image_records / f"{_file_name(digest)}.json").unlink(missing_ok=True)
                del self._images[digest]
            _sync_directory(self._image_records)
            used = in_use | {layer.name for image in self._images.values() for layer in image.layers}
            loose = {key: name for key, name in self._layers.items() if name not in used and not self._pins[key]}
            for key, name in loose.items():
                (self._layer_records / f"{name}.json").unlink(missing_ok=True)
                del self._layers[key]
            _sync_directory(self._layer_records)
            return gone, [self._set_aside(name) for name in loose.values()]

    # Layers

    def layer(self, *keys: str) -> Path | None:
        """The unpacked layer stored under the first of `keys` that is known."""
        for key in keys:
            if name := self._layers.get(key):
                return self._trees / name
        return None

    @contextmanager
    def pinned(self, keys: Iterable[str]) -> Iterator[None]:
        """Layers with these keys, present or to come, survive `remove_unused` meanwhile."""
        pins = Counter(keys)
        with self._lock:
            self._pins += pins
        try:
            yield
        finally:
            with self._lock:
                self._pins -= pins

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """An empty directory for `commit_layer`; removed at the end if it was not committed."""
        tree = Path(tempfile.mkdtemp(prefix=_NEW, dir=self._trees))
        try:
            yield tree
        finally:
            with suppress(FileNotFoundError):
                shutil.rmtree(tree)

    def commit_layer(self, tree: Path, key: str) -> Path:
        """Makes the finished `tree` durable and known as `key`. When `key` is known already, that tree is returned."""
        _sync_file_system(self._trees)
        with self._lock:
            if known := self.layer(key):
                return known
            name = self._free_name()
            os.rename(tree, self._trees / name)
            _sync_directory(self._trees)
            _write_record(self._layer_records / f"{name}.json", {"key": key})
            self._layers[key] = name
            return self._trees / name

    def require_space(self, size: int = 0) -> None:
        """Raises AgentError DiskFull unless `size` bytes fit beside the reserve."""
        status = os.statvfs(self._trees)
        free = status.f_bavail * status.f_frsize
        if free < size + self._reserve:
            raise AgentError(
                "DiskFull",
                f"{self._trees}: {free >> 20} MiB free, the image needs more than {size >> 20} MiB and "
                f"{self._reserve >> 20} MiB stay reserved; free some space",
            )

    # Disk

    def _recover(self, in_use: frozenset[str]) -> None:
        """Forgets what an interrupted run left behind: half trees, trees without record, records without tree."""
        trees = {entry.name for entry in os.scandir(self._trees)}
        for path in self._layer_records.iterdir():
            record = _read_record(path)
            key = record.get("key") if record else None
            if isinstance(key, str) and path.stem in trees and path.suffix == ".json":
                self._layers[key] = path.stem
            else:
                _forget(path)
        for path in self._image_records.iterdir():
            image = self._recovered_image(path)
            if image is None:
                _forget(path)
            else:
                self._images[image.digest] = image
        for name in trees - set(self._layers.values()) - in_use:
            shutil.rmtree(self._trees / name)

    def _recovered_image(self, path: Path) -> Image | None:
        record = _read_record(path) if path.suffix == ".json" else None
        if record is None:
            return None
        try:
            image = self._image_of(record)
        except (AgentError, KeyError, TypeError, ValueError):
            return None
        known = set(self._layers.values())
        return image if all(layer.name in known for layer in image.layers) else None

    def _image_of(self, record: dict[str, Any]) -> Image:
        return Image(
            ImageReference.parse(record["reference"]),
            record["digest"],
            ImageConfig.parse(record["config"]),
            tuple(self._trees / name for name in record["layers"]),
        )

    def _free_name(self) -> str:
        while (self._trees / (name := secrets.token_hex(4))).exists():
            pass
        return name

    def _set_aside(self, name: str) -> Path:
        doomed = self._trees / f"{_NEW}{name}"
        os.rename(self._trees / name, doomed)
        return doomed


@contextmanager
def disk_failures_named() -> Iterator[None]:
    """Turns what the file system raises into AgentError DiskFull or ImageStoreFailed."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise AgentError("DiskFull", f"the image does not fit on the disk: {error}; free some space") from error
        raise AgentError("ImageStoreFailed", f"the image store cannot be written: {error}") from error


def _file_name(digest: str) -> str:
    return digest.replace(":", "-")


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _forget(path: Path) -> None:
    """Remove a record that leads nowhere, or cannot be read."""
    if path.suffix == ".json":
        log.warning("%s is of no use: what it names is damaged or gone, and is pulled again when it is needed", path)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _write_record(path: Path, record: dict[str, Any]) -> None:
    """Old or new content after a power cut, never a mixture and never none."""
    temporary = path.with_suffix(".new")
    with temporary.open("w") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_file_system(path: Path) -> None:
    """syncfs(2): thousands of new files are on the disk after one call."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
