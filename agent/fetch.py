"""The image of a generation: from the node's disk where the policy allows it, else pulled."""

import asyncio
import time
from collections.abc import Callable

from agent import secrets
from agent.errors import AgentError
from agent.images.credentials import RegistryCredentials
from agent.images.pull import PullProgress, pull
from agent.images.reference import ImageReference
from agent.images.registry import RegistryClient
from agent.images.store import Image
from agent.record import Record
from agent.wish import Wish
from agent.workshop import Workshop


def local(shop: Workshop, known: Record, wish: Wish) -> Image | None:
    """The image that the name stands for here already: the one that runs, else the only one of that name.

    Raises AgentError InvalidReference, ImageNeverPulled.
    """
    spec = wish.application.spec
    reference = ImageReference.parse(spec.image)
    image = None if spec.imagePullPolicy == "Always" else _known(shop, known, reference)
    if image is None and spec.imagePullPolicy == "Never":
        raise AgentError("ImageNeverPulled", f"{reference} is not on this node, and imagePullPolicy is Never")
    return image


def _known(shop: Workshop, known: Record, reference: ImageReference) -> Image | None:
    if reference.digest:
        return shop.store.image(reference.digest)
    if known.current is not None and known.current.reference == str(reference):
        return shop.store.image(known.current.digest)
    named = [image for image in shop.store.images() if str(image.reference) == str(reference)]
    return named[0] if len(named) == 1 else None


async def fetch(
    shop: Workshop, wish: Wish, progress: Callable[[PullProgress], None], tell: Callable[[str, str, str], None]
) -> Image:
    """Pull it, a few images at a time. Raises AgentError; cancelling it leaves nothing behind."""
    reference = ImageReference.parse(wish.application.spec.image)
    client = RegistryClient(shop.registry, _credentials(wish), shop.gates)
    tell("Normal", "Pulling", f"pulling image {reference}")
    began = time.monotonic()
    received = PullProgress()

    def note(now: PullProgress) -> None:
        nonlocal received
        received = now
        progress(now)

    async with shop.pulls:
        image = await pull(reference, client=client, store=shop.store, progress=note)
    size = f"{received.bytes_total / 2**20:.1f} MiB in " if received.bytes_total else ""
    tell("Normal", "Pulled", f"image {reference} is here ({size}{time.monotonic() - began:.1f} s)")
    return image


def _credentials(wish: Wish) -> RegistryCredentials:
    credentials = RegistryCredentials()
    for data in wish.pull_secrets:
        if not data.missing and ".dockerconfigjson" in data.data:
            raw = secrets.decoded(data, ".dockerconfigjson")
            credentials = credentials.merged(RegistryCredentials.from_docker_config(raw))
    return credentials


class SupersededError(Exception):
    """Something newer is wanted than what was being done."""


async def unless(news: asyncio.Event, task: "asyncio.Task[Image]") -> Image:
    """The result of `task`, unless `news` comes first: then it is cancelled. Raises SupersededError."""
    coming = asyncio.create_task(news.wait())
    try:
        await asyncio.wait({task, coming}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise SupersededError
        return task.result()
    finally:
        coming.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
