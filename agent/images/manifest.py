"""Manifests, indexes and image configurations: JSON from strangers made into checked values.

Source: opencontainers/image-spec (image-index.md, manifest.md, config.md) and Docker's image manifest v2 schema 2.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from agent.errors import AgentError
from agent.images.config import ImageConfig
from agent.images.platform import Platform
from agent.images.reference import is_digest

MAX_LAYERS = 499  # overlayfs takes 500, one is kept for mount points
MAX_CONFIG = 4 << 20
_INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A pointer to content: digest, size in bytes, media type as claimed."""

    digest: str
    size: int
    media_type: str = ""
    platform: Platform | None = None
    is_image: bool = True  # False for attestations and other things that ride along in an index


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """One platform's image: its configuration and its layers, lowest first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True)
class ImageIndex:
    entries: tuple[Descriptor, ...]

    def candidates(self, platform: Platform) -> list[Descriptor]:
        """Entries to look at for `platform`, best first; those that name no platform (nested indexes) come last."""
        images = [entry for entry in self.entries if entry.is_image]
        fitting = [(platform.fitness(entry.platform), entry) for entry in images if entry.platform is not None]
        usable = sorted((pair for pair in fitting if pair[0]), key=lambda pair: -pair[0])
        return [entry for _, entry in usable] + [entry for entry in images if entry.platform is None]

    def platforms(self) -> set[str]:
        """The platforms its entries name, for people."""
        return {str(entry.platform) for entry in self.entries if entry.is_image and entry.platform is not None}


@dataclass(frozen=True, slots=True)
class ImageDocument:
    """An image configuration: how to run it, and the digests of its uncompressed layers, lowest first."""

    config: ImageConfig
    diff_ids: tuple[str, ...]
    platform: Platform | None
    raw_config: Any


def parse_manifest(data: bytes, media_type: str) -> ImageManifest | ImageIndex:
    """Reads what a registry served as a manifest. Raises AgentError InvalidManifest."""
    document = _object(data, "InvalidManifest", "manifest")
    if "manifests" in document and ("layers" in document or "config" in document):
        raise _invalid("it is an index and a manifest at once (CVE-2021-41190)")
    if document.get("schemaVersion") == 1 or "fsLayers" in document:
        raise _invalid("schema 1 is not supported; push the image again with a current tool")
    if "manifests" in document or media_type in _INDEX_TYPES:
        return ImageIndex(tuple(_descriptor(entry) for entry in _list(document.get("manifests"))))
    if "config" not in document:
        raise _invalid(f"{document.get('mediaType') or media_type or 'it'} is no image manifest")
    layers = tuple(_descriptor(layer) for layer in _list(document.get("layers")))
    if len(layers) > MAX_LAYERS:
        raise _invalid(f"it has {len(layers)} layers; at most {MAX_LAYERS} can be mounted")
    config = _descriptor(document["config"])
    if config.size > MAX_CONFIG:
        raise _invalid(f"its configuration has {config.size} bytes, more than {MAX_CONFIG}")
    return ImageManifest(config, layers)


def parse_document(data: bytes) -> ImageDocument:
    """Reads an image configuration. Raises AgentError InvalidImage."""
    document = _object(data, "InvalidImage", "image configuration")
    rootfs = document.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    diff_ids = [] if diff_ids is None else diff_ids
    if not isinstance(diff_ids, list) or not all(isinstance(item, str) and is_digest(item) for item in diff_ids):
        raise AgentError("InvalidImage", "the image configuration lists no valid rootfs.diff_ids")
    raw = document.get("config")
    return ImageDocument(ImageConfig.parse(raw), tuple(diff_ids), Platform.parse(document), raw)


def chain_ids(diff_ids: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the stacks up to each layer (image-spec, config.md "Layer ChainID")."""
    chains: list[str] = []
    for diff_id in diff_ids:
        stacked = f"{chains[-1]} {diff_id}".encode() if chains else b""
        chains.append(f"sha256:{hashlib.sha256(stacked).hexdigest()}" if chains else diff_id)
    return tuple(chains)


def _descriptor(value: Any) -> Descriptor:
    if not isinstance(value, dict):
        raise _invalid("a descriptor is not an object")
    digest, size, media_type = value.get("digest"), value.get("size"), value.get("mediaType", "")
    if not isinstance(digest, str) or not is_digest(digest):
        raise _invalid(f"{str(digest)[:100]!r} is not a digest")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 50:
        raise _invalid(f"{str(size)[:40]!r} is not a size")
    platform = Platform.parse(value.get("platform"))
    annotations = value.get("annotations")
    rides_along = "artifactType" in value or (
        isinstance(annotations, dict) and "vnd.docker.reference.type" in annotations
    )
    unknown = platform is not None and "unknown" in (platform.os, platform.architecture)
    return Descriptor(
        digest, size, media_type if isinstance(media_type, str) else "", platform, not (rides_along or unknown)
    )


def _object(data: bytes, reason: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise AgentError(reason, f"the {what} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise AgentError(reason, f"the {what} is no JSON object")
    return value


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _invalid("expected a list")
    return value


def _invalid(why: str) -> AgentError:
    return AgentError("InvalidManifest", f"the manifest cannot be used: {why}")
