"""Cold pull and unpack of an image with many files: the agent's store against skopeo copy + umoci unpack.

Every round uses fresh directories and nothing is removed before the end: ext4 passes over inodes that were freed a
moment ago, and whoever unpacks just after a removal takes several times as long. Before each turn the disk is made
quiet, so that neither side writes out the other's pages.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from pathlib import Path

from agent.images.pull import pull
from agent.images.reference import ImageReference
from agent.images.registry import RegistryClient, RegistryConfig, RegistryMirror
from agent.images.store import ImageStore
from tests.bench.figure import Figure, Rule
from tests.bench.rounds import paired
from tests.lab.command import run as command
from tests.lab.estate import Estate
from tests.lab.images.catalogue import build
from tests.lab.images.layout import load
from tests.lab.oci import push
from tests.lab.registry import Registry
from tests.lab.server import free_port

_IMAGE, _TAG = "library/postgres", "18-alpine"
_ROUNDS = 5


def run() -> list[Figure]:
    what = load(build(f"{_IMAGE}:{_TAG}"))
    estate = Estate.fresh()
    registry = Registry(estate.directory / "registry", "127.0.0.1", free_port())
    registry.start()
    try:
        push(registry.endpoint, _IMAGE, _TAG, what)
        turns = (estate.directory / str(number) for number in itertools.count())
        pairs = paired(
            lambda: _skopeo_and_umoci(registry.endpoint, next(turns)),
            lambda: _agent(registry.endpoint, next(turns)),
            _ROUNDS,
        )
    finally:
        registry.stop()
        estate.close()
    name = "cold pull and unpack vs skopeo copy + umoci unpack"
    return [Figure.of_pairs(name, "s", pairs, Rule.RATIO_AT_MOST, 0.35)]


def _skopeo_and_umoci(endpoint: str, directory: Path) -> float:
    started = _begin(directory)
    layout = f"{directory / 'oci'}:latest"
    source = f"docker://{endpoint}/{_IMAGE}:{_TAG}"
    command("skopeo", "copy", "--quiet", "--src-tls-verify=false", source, f"oci:{layout}", timeout=120)
    command("umoci", "unpack", "--image", layout, directory / "bundle", timeout=120)
    return time.perf_counter() - started


def _agent(endpoint: str, directory: Path) -> float:
    started = _begin(directory)
    store = ImageStore(directory)
    client = RegistryClient(RegistryConfig((RegistryMirror("docker.io", f"http://{endpoint}"),)))
    try:
        image = asyncio.run(pull(ImageReference.parse(f"{_IMAGE}:{_TAG}"), client=client, store=store))
    finally:
        store.close()
    elapsed = time.perf_counter() - started
    if not all(layer.is_dir() for layer in image.layers):
        raise RuntimeError(f"the pull left no layers in {directory}")
    return elapsed


def _begin(directory: Path) -> float:
    directory.mkdir()
    os.sync()
    return time.perf_counter()
