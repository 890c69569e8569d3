"""Keeps images on disk in the OCI image layout (image-spec, image-layout.md), which skopeo and umoci read as well."""

import json
from pathlib import Path
from typing import Any

from tests.lab.oci import OCI_INDEX, Blob, Image


def save(what: Image, directory: Path) -> None:
    """Write an image or index with all its blobs; `index.json` names it with the tag `latest`."""
    (directory / "blobs" / "sha256").mkdir(parents=True)
    _save_blobs(what, directory)
    named = what.manifest.descriptor(annotations={"org.opencontainers.image.ref.name": "latest"})
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def load(directory: Path) -> Image:
    """The image that `save` wrote there."""
    [named] = json.loads((directory / "index.json").read_text())["manifests"]
    return _load(directory, named)


def _save_blobs(what: Image, directory: Path) -> None:
    for blob in (*what.blobs, what.manifest):
        _path(directory, blob.digest).write_bytes(blob.data)
    for child in what.children:
        _save_blobs(child, directory)


def _load(directory: Path, descriptor: dict[str, Any]) -> Image:
    manifest = _blob(directory, descriptor)
    content = json.loads(manifest.data)
    if manifest.media_type == OCI_INDEX:
        return Image(manifest, children=tuple(_load(directory, child) for child in content["manifests"]))
    blobs = tuple(_blob(directory, part) for part in (*content["layers"], content["config"]))
    return Image(manifest, blobs, platform=descriptor.get("platform"))


def _blob(directory: Path, descriptor: dict[str, Any]) -> Blob:
    return Blob(descriptor["mediaType"], _path(directory, descriptor["digest"]).read_bytes())


def _path(directory: Path, digest: str) -> Path:
    return directory / "blobs" / "sha256" / digest.removeprefix("sha256:")
