"""Builds OCI images offline and pushes them into a registry over its HTTP API.

A layer is made from a function that writes into a `tarfile.TarFile`, or from a directory, or from raw tar bytes when a
test needs something that tarfile refuses to write:

    base = layer_from_directory(Path("rootfs"))
    top = layer(lambda tar: add_file(tar, "etc/motd", b"hello"), compression="zstd")
    push("127.0.0.1:5000", "library/postgres", "18-alpine", image([base, top], {"Cmd": ["/bin/sh"]}))
"""

import hashlib
import http.client
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import zstandard
from isal import isal_zlib

Compression = Literal["gzip", "zstd", "none"]

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER_TYPES: Mapping[Compression, str] = {
    "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
    "none": "application/vnd.oci.image.layer.v1.tar",
}


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Blob:
    """Content with a media type; `diff_id` is the digest of the uncompressed tar and is set for layers only."""

    media_type: str
    data: bytes
    diff_id: str = ""

    @property
    def digest(self) -> str:
        return sha256(self.data)

    def descriptor(self, **more: Any) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.data), **more}


@dataclass(frozen=True, slots=True)
class Image:
    """What a push needs, in push order: `blobs`, `children` (of an index), then `manifest`, which names them all."""

    manifest: Blob
    blobs: tuple[Blob, ...] = ()
    children: tuple["Image", ...] = ()
    platform: Mapping[str, str] | None = None

    @property
    def digest(self) -> str:
        return self.manifest.digest


class _LayerSink(io.RawIOBase):
    """Hashes the tar and compresses it while tarfile writes it, so that a big root file system needs no second copy."""

    def __init__(self, compression: Compression) -> None:
        self.diff = hashlib.sha256()
        self.out = bytearray()
        self._close_stream: Callable[[], bytes]
        if compression == "gzip":
            gzip = isal_zlib.compressobj(2, isal_zlib.DEFLATED, 31)
            self._compress, self._close_stream = gzip.compress, gzip.flush
        elif compression == "zstd":
            zstd = zstandard.ZstdCompressor(level=3).compressobj()
            self._compress, self._close_stream = zstd.compress, zstd.flush
        else:
            self._compress, self._close_stream = bytes, bytes

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.diff.update(data)
        self.out += self._compress(bytes(data))
        return len(data)

    def finish(self) -> tuple[bytes, str]:
        self.out += self._close_stream()
        return bytes(self.out), "sha256:" + self.diff.hexdigest()


def layer(write: Callable[[tarfile.TarFile], None], compression: Compression = "gzip") -> Blob:
    """A layer with the entries that `write` adds to the tar it is given (PAX format)."""
    sink = _LayerSink(compression)
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        write(tar)
    data, diff_id = sink.finish()
    return Blob(LAYER_TYPES[compression], data, diff_id)


def layer_from_bytes(tar: bytes, compression: Compression = "gzip", media_type: str | None = None) -> Blob:
    """A layer of raw tar bytes; `media_type` may lie about the compression."""
    sink = _LayerSink(compression)
    sink.write(tar)
    data, diff_id = sink.finish()
    return Blob(media_type or LAYER_TYPES[compression], data, diff_id)


def layer_from_directory(
    root: Path, compression: Compression = "gzip", keep: Callable[[str], bool] = lambda path: True
) -> Blob:
    """Everything below `root` with owners, modes and extended attributes; `keep` decides by path relative to root."""

    def add(tar: tarfile.TarFile) -> None:
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.is_socket() or not keep(name):
                continue
            info = tar.gettarinfo(str(path), arcname=name)
            info.pax_headers = _xattrs(path)
            if info.isreg():
                with path.open("rb") as content:
                    tar.addfile(info, content)
            else:
                tar.addfile(info)

    return layer(add, compression)


def _xattrs(path: Path) -> dict[str, str]:
    names = os.listxattr(path, follow_symlinks=False)
    return {
        f"SCHILY.xattr.{name}": os.getxattr(path, name, follow_symlinks=False).decode("utf-8", "surrogateescape")
        for name in names
    }


def add_file(tar: tarfile.TarFile, name: str, data: bytes = b"", mode: int = 0o644, **fields: Any) -> None:
    """A regular file; `fields` are attributes of TarInfo (uid, gid, mtime, pax_headers, …)."""
    tar.addfile(_info(name, tarfile.REGTYPE, mode, size=len(data), **fields), io.BytesIO(data))


def add_directory(tar: tarfile.TarFile, name: str, mode: int = 0o755, **fields: Any) -> None:
    tar.addfile(_info(name, tarfile.DIRTYPE, mode, **fields))


def add_symlink(tar: tarfile.TarFile, name: str, target: str, **fields: Any) -> None:
    tar.addfile(_info(name, tarfile.SYMTYPE, 0o777, linkname=target, **fields))


def add_hardlink(tar: tarfile.TarFile, name: str, target: str, **fields: Any) -> None:
    tar.addfile(_info(name, tarfile.LNKTYPE, 0o644, linkname=target, **fields))


def _info(name: str, kind: bytes, mode: int, **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, mode
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def image(
    layers: Sequence[Blob],
    config: Mapping[str, Any] | None = None,
    *,
    os: str = "linux",
    architecture: str = "amd64",
    variant: str = "",
) -> Image:
    """An image of `layers`, lowest first; `config` is the object of that name in the image configuration (Env, Cmd)."""
    platform = {"os": os, "architecture": architecture} | ({"variant": variant} if variant else {})
    content = {
        **platform,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [blob.diff_id for blob in layers]},
    }
    config_blob = Blob(OCI_CONFIG, json.dumps(content).encode())
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": config_blob.descriptor(),
        "layers": [blob.descriptor() for blob in layers],
    }
    return Image(Blob(OCI_MANIFEST, json.dumps(manifest).encode()), (*layers, config_blob), platform=platform)


def index(images: Iterable[Image]) -> Image:
    """An index of images (or of indexes); a child's `platform` is written beside its descriptor."""
    children = tuple(images)
    descriptors = [
        child.manifest.descriptor(**({"platform": dict(child.platform)} if child.platform else {}))
        for child in children
    ]
    content = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": descriptors}
    return Image(Blob(OCI_INDEX, json.dumps(content).encode()), children=children)


def push(registry: str, repository: str, tag: str, what: Image, headers: Mapping[str, str] | None = None) -> str:
    """Pushes into the plain-http `registry` ("127.0.0.1:5000"), returns the manifest digest; sends no blob twice."""
    connection = http.client.HTTPConnection(registry, timeout=60)
    try:
        _push(connection, repository, tag, what, dict(headers or {}))
    finally:
        connection.close()
    return what.digest


def _push(
    connection: http.client.HTTPConnection, repository: str, tag: str, what: Image, headers: dict[str, str]
) -> None:
    for child in what.children:
        _push(connection, repository, child.digest, child, headers)
    for blob in what.blobs:
        _push_blob(connection, repository, blob, headers)
    path = f"/v2/{repository}/manifests/{tag}"
    _call(connection, "PUT", path, 201, what.manifest.data, {**headers, "Content-Type": what.manifest.media_type})


def _push_blob(connection: http.client.HTTPConnection, repository: str, blob: Blob, headers: dict[str, str]) -> None:
    connection.request("HEAD", f"/v2/{repository}/blobs/{blob.digest}", headers=headers)
    response = connection.getresponse()
    response.read()
    if response.status == 200:
        return
    location = _call(connection, "POST", f"/v2/{repository}/blobs/uploads/", 202, b"", headers)
    parts = urlsplit(location)
    target = parts.path + "?" + (parts.query + "&" if parts.query else "") + f"digest={blob.digest}"
    _call(connection, "PUT", target, 201, blob.data, {**headers, "Content-Type": "application/octet-stream"})


def _call(
    connection: http.client.HTTPConnection, method: str, path: str, expected: int, body: bytes, headers: dict[str, str]
) -> str:
    connection.request(method, path, body=body, headers=headers)
    response = connection.getresponse()
    text = response.read()
    if response.status != expected:
        raise RuntimeError(f"{method} {path}: {response.status} {text[:300]!r}")
    return response.headers.get("Location", "")
