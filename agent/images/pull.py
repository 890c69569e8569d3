"""From an image's name to its unpacked layers: resolve, choose the platform, fetch and unpack what is missing.

Each layer passes once through hash, inflate, hash and extraction, in two threads, without a temporary file.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ParamSpec, TypeVar

from agent.errors import AgentError
from agent.images.abort import Abort
from agent.images.content import Digest, LayerContent
from agent.images.layers import LayerExtractor
from agent.images.manifest import (
    Descriptor,
    ImageDocument,
    ImageIndex,
    ImageManifest,
    chain_ids,
    parse_document,
    parse_manifest,
)
from agent.images.platform import Platform
from agent.images.readahead import read_ahead
from agent.images.reference import ImageReference
from agent.images.registry import Manifest, RegistryClient
from agent.images.store import Image, ImageStore, disk_failures_named
from agent.images.transfers import Transfer
from agent.images.view import ImageView, visible

_PARALLEL_LAYERS = 4
_REPORT_SECONDS = 0.25
_MAX_NESTING = 3
_MAX_MANIFESTS = 16

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class PullProgress:
    """Layers and compressed bytes that are here, of all the image has; `waiting` says why nothing moves, or is ""."""

    layers_done: int = 0
    layers_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer of the image being pulled; `path` is set when it was in the store already."""

    blob: Descriptor
    diff_id: str
    chain_id: str
    path: Path | None

    @property
    def keys(self) -> tuple[str, str]:
        """Names in the store: by content alone, or by the stack when the content leans on lower layers."""
        return f"diff:{self.diff_id}", f"chain:{self.chain_id}"


Progress = Callable[[PullProgress], None]


async def resolve(reference: ImageReference, *, client: RegistryClient) -> str:
    """The digest `reference` stands for now. Asks the registry only for tags. Raises AgentError."""
    if reference.digest:
        return reference.digest
    abort = Abort()
    return (await _in_thread(abort, lambda: None, client.manifest, reference, abort)).digest


async def pull(
    reference: ImageReference,
    *,
    client: RegistryClient,
    store: ImageStore,
    platform: Platform | None = None,
    progress: Progress | None = None,
) -> Image:
    """Makes `reference` present in `store` and returns it; a reference with a digest that is present needs no network.

    `progress` is called on the event loop, when something changed. Cancelling stops the threads and leaves no tree.
    Raises AgentError.
    """
    if reference.digest and (image := store.image(reference.digest)):
        return replace(image, reference=reference)
    report = _Reporter(progress, lambda: client.waiting(reference))
    abort = Abort()
    manifest = await _in_thread(abort, report, client.manifest, reference, abort)
    if image := store.image(manifest.digest):
        return replace(image, reference=reference)
    chosen = await _in_thread(abort, report, _choose, reference, manifest, client, platform or Platform.host(), abort)
    document, blobs = chosen
    stack = list(zip(blobs, document.diff_ids, chain_ids(document.diff_ids), strict=True))
    keys = [key for layer in stack for key in _Layer(*layer, None).keys]
    with store.pinned(keys):
        try:
            paths = await _fetch_layers(reference, stack, client, store, report)
        except _SharedTransferFailedError:  # it ran with another pull's credentials: once more with ours
            try:
                paths = await _fetch_layers(reference, stack, client, store, report)
            except _SharedTransferFailedError as again:
                raise again.error from again
        return await asyncio.to_thread(_record, store, reference, manifest.digest, document, paths)


def _record(
    store: ImageStore, reference: ImageReference, digest: str, document: ImageDocument, paths: list[Path]
) -> Image:
    with disk_failures_named():
        return store.add_image(reference, digest, document.raw_config, visible(paths[::-1]))


# Manifests


def _choose(
    reference: ImageReference, manifest: Manifest, client: RegistryClient, platform: Platform, abort: Abort
) -> tuple[ImageDocument, tuple[Descriptor, ...]]:
    """The configuration and the layer blobs of the image for `platform`."""
    document = parse_manifest(manifest.data, manifest.media_type)
    if isinstance(document, ImageIndex):
        search = _IndexSearch(reference, client, platform, abort)
        found = search.find(document, 1)
        if found is None:
            have = ", ".join(sorted(search.seen)) or "none"
            raise AgentError("NoMatchingPlatform", f"{reference} has no image for {platform}; have {have}")
        document = found
    data = _small_blob(reference, document.config, client, abort)
    image = parse_document(data)
    if image.platform and not platform.fitness(image.platform):
        raise AgentError("NoMatchingPlatform", f"{reference} has no image for {platform}; have {image.platform}")
    if len(image.diff_ids) != len(document.layers):
        raise AgentError(
            "InvalidManifest",
            f"{reference} has {len(document.layers)} layers, but its configuration names {len(image.diff_ids)}",
        )
    return image, document.layers


class _IndexSearch:
    """Walks an index and the indexes in it, within a budget."""

    def __init__(self, reference: ImageReference, client: RegistryClient, platform: Platform, abort: Abort) -> None:
        self._reference, self._client, self._platform, self._abort = reference, client, platform, abort
        self._budget = _MAX_MANIFESTS
        self.seen: set[str] = set()

    def find(self, index: ImageIndex, depth: int) -> ImageManifest | None:
        self.seen |= index.platforms()
        for entry in index.candidates(self._platform):
            self._budget -= 1
            if self._budget < 0:
                raise AgentError("InvalidManifest", f"{self._reference}: more than {_MAX_MANIFESTS} nested manifests")
            manifest = self._client.manifest(self._reference.pinned(entry.digest), self._abort)
            document = parse_manifest(manifest.data, manifest.media_type)
            if isinstance(document, ImageManifest):
                return document
            if depth >= _MAX_NESTING:
                raise AgentError("InvalidManifest", f"{self._reference}: indexes nested deeper than {_MAX_NESTING}")
            if found := self.find(document, depth + 1):
                return found
        return None


def _small_blob(reference: ImageReference, blob: Descriptor, client: RegistryClient, abort: Abort) -> bytes:
    data = b"".join(client.blob(reference, blob.digest, blob.size, abort))
    check = Digest(blob.digest)
    check.update(data)
    check.verify(f"configuration of {reference}")
    return data


# Layers


class _SharedTransferFailedError(Exception):
    """A transfer that another pull had begun failed."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


async def _fetch_layers(
    reference: ImageReference,
    stack: list[tuple[Descriptor, str, str]],
    client: RegistryClient,
    store: ImageStore,
    report: "_Reporter",
) -> list[Path]:
    """Directories of all layers, lowest first."""
    layers: list[_Layer] = []
    for blob, diff_id, chain_id in stack:
        layer = _Layer(blob, diff_id, chain_id, None)
        layers.append(replace(layer, path=store.layer(*layer.keys)))
    store.require_space(sum(layer.blob.size for layer in layers if layer.path is None))
    transfers: dict[int, Transfer] = {}
    shared: set[int] = set()
    waits: dict[int, asyncio.Future[Path]] = {}
    missing = deque(position for position, layer in enumerate(layers) if layer.path is None)
    pending: set[asyncio.Future[Path]] = set()
    try:
        while missing or pending:
            while missing and len(pending) < _PARALLEL_LAYERS:  # lower ones first: upper ones may wait for them
                position = missing.popleft()
                work = _work(reference, layers[position], _lower(layers[:position], dict(transfers)), client, store)
                transfers[position], joined = store.transfers.join(layers[position].chain_id, work)
                waits[position] = _quiet(asyncio.wrap_future(transfers[position].future))
                pending.add(waits[position])
                shared |= {position} if joined else set()
            done, pending = await asyncio.wait(pending, timeout=_REPORT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            report.update(layers, transfers)
            for position, wait in waits.items():
                if wait in done and (error := wait.exception()):
                    raise _SharedTransferFailedError(error) if position in shared else error
        return [layer.path or waits[position].result() for position, layer in enumerate(layers)]
    finally:
        stopping = {waits[position] for position in waits if store.transfers.leave(transfers[position])}
        if stopping:
            await asyncio.wait(stopping)


def _lower(below: list[_Layer], transfers: dict[int, Transfer]) -> Callable[[Abort], ImageView]:
    """Gives the view of the layers below, waiting for those still on their way."""

    @cache
    def view(abort: Abort) -> ImageView:
        paths = [layer.path or transfers[position].wait(abort) for position, layer in enumerate(below)]
        return ImageView(paths[::-1])

    return view


def _work(
    reference: ImageReference,
    layer: _Layer,
    lower: Callable[[Abort], ImageView],
    client: RegistryClient,
    store: ImageStore,
) -> Callable[[Transfer], Path]:
    """What a transfer's thread does for `layer`."""

    def run(transfer: Transfer) -> Path:
        transfer.abort.check()
        content = LayerContent(layer.blob, layer.diff_id, str(reference), transfer, store.require_space)
        blob = client.blob(reference, layer.blob.digest, layer.blob.size, transfer.abort)
        with disk_failures_named(), store.workspace() as tree:
            extractor = LayerExtractor(tree, lambda: lower(transfer.abort))
            with read_ahead(content.plain(blob), transfer.abort) as pieces:
                try:
                    extractor.extract(pieces)
                except AgentError as error:
                    content.explain(error, pieces)
                    raise
            content.verify()
            independent, chained = layer.keys
            return store.commit_layer(tree, chained if extractor.depends_on_lower else independent)

    return run


# Threads and progress


class _Reporter:
    """Tells the caller about changes, and only about changes."""

    def __init__(self, progress: Progress | None, waiting: Callable[[], str]) -> None:
        self._progress = progress
        self._waiting = waiting
        self._last = PullProgress()

    def __call__(self) -> None:
        self._tell(replace(self._last, waiting=self._waiting()))

    def update(self, layers: list[_Layer], transfers: dict[int, Transfer]) -> None:
        done = sum(layer.path is not None for layer in layers) + sum(
            transfer.future.done() for transfer in transfers.values()
        )
        received = sum(layer.blob.size for layer in layers if layer.path is not None) + sum(
            transfer.received for transfer in transfers.values()
        )
        total = sum(layer.blob.size for layer in layers)
        self._tell(PullProgress(done, len(layers), received, total, self._waiting()))

    def _tell(self, now: PullProgress) -> None:
        if self._progress is not None and now != self._last:
            self._last = now
            self._progress(now)


async def _in_thread(
    abort: Abort,
    report: Callable[[], None],
    function: Callable[Arguments, Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Runs blocking work that heeds `abort`, which is set when the caller is cancelled; the thread ends first."""
    work = _quiet(asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs)))
    try:
        while not work.done():
            await asyncio.wait({work}, timeout=_REPORT_SECONDS)
            report()
        return work.result()
    except asyncio.CancelledError:
        abort.set()
        await asyncio.wait({work})
        raise


def _quiet(future: asyncio.Future[Result]) -> asyncio.Future[Result]:
    """Its exception counts as seen, also when another one was raised first."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future
