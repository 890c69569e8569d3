"""Takes away what the agent made for an application, and nothing else: volumes and their data are not in its reach."""

import asyncio
import contextlib
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from agent import output, starter, units
from agent.errors import AgentError
from agent.layout import Layout
from agent.record import Record, Revision
from agent.systemd import UnitGone
from agent.units import Identity
from agent.workshop import Workshop

log = logging.getLogger("horchestra.teardown")

_UNMOUNT_SECONDS = 30


async def discard(shop: Workshop, known: Record, revision: Revision, keep: Collection[Revision]) -> None:
    """Remove root and sealed secrets of a revision, but for what those in `keep` use as well. Raises AgentError."""
    await _discard(shop, known, revision, keep)
    if revision.root not in {kept.root for kept in keep}:
        await shop.reloader.reload()


async def _discard(shop: Workshop, known: Record, revision: Revision, keep: Collection[Revision]) -> None:
    """The same; systemd is still to read what is left."""
    if revision.root not in {kept.root for kept in keep}:
        await _remove_root(shop, revision.root)
        known.written.pop(units.mount_unit(revision.root, shop.layout), None)
    if revision.secrets and revision.secrets not in {kept.secrets for kept in keep}:
        await asyncio.to_thread(remove_tree, shop.layout.app(known.uid) / revision.secrets)


async def _remove_root(shop: Workshop, number: int) -> None:
    name = units.mount_unit(number, shop.layout)
    with contextlib.suppress(UnitGone):
        await shop.systemd.stop(name, seconds=_UNMOUNT_SECONDS)
    await asyncio.to_thread(shop.remove_unit, name)
    for directory in (shop.layout.skeleton(number), shop.layout.root(number)):
        await asyncio.to_thread(remove_tree, directory)


async def reap(shop: Workshop, records: Collection[Record]) -> None:
    """Remove roots that no record, no unit on disk and no process has: what an agent was removing when it died."""
    used = {r.root for known in records for r in (known.current, known.previous) if r is not None}
    used |= await asyncio.to_thread(units.roots_in_use, shop.layout)
    used |= await asyncio.to_thread(_roots_of_processes, shop.layout)
    parents = (shop.layout.root(0).parent, shop.layout.skeleton(0).parent)
    names = {path.name for parent in parents if parent.exists() for path in parent.iterdir()}
    doomed = sorted({int(name) for name in names if name.isdecimal()} - used)
    if doomed:
        # An agent that died between writing a unit and the reload left systemd with the old text: by that an
        # application may still require a root that no file names any more, and would be stopped with its mount.
        try:
            await shop.reloader.reload()
        except AgentError as error:
            log.warning("roots %s stay: %s", doomed, error)
            return
    for number in doomed:
        log.info("removing root %d, which no application uses", number)
        try:
            await _remove_root(shop, number)
            await shop.reloader.reload()
        except (AgentError, OSError) as error:
            log.warning("root %d stays: %s", number, error)


def _roots_of_processes(layout: Layout) -> set[int]:
    """Numbers of the roots that processes have as theirs (proc(5), mountinfo: fields 5 and 11). Blocks."""
    skeletons = re.escape(str(layout.skeleton(0).parent))
    pattern = re.compile(rf"^\S+ \S+ \S+ / / .* \S*lowerdir={skeletons}/([0-9]+):", re.MULTILINE)
    found = set()
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            found |= {int(number) for number in pattern.findall(path.read_text(errors="replace"))}
    return found


async def remove(shop: Workshop, identity: Identity, known: Record, grace: int | None) -> None:
    """Stop with grace (seconds; None: the unit's own), remove everything. Raises AgentError when something stays."""
    layout, unit = shop.layout, identity.unit
    await _stop_within(shop, unit, grace)
    await shop.systemd.stop(starter.unit(identity.uid), seconds=_UNMOUNT_SECONDS)
    await asyncio.to_thread(shop.remove_unit, unit, units.WANTED_BY)
    await asyncio.to_thread(remove_tree, layout.units / f"{unit}.d")
    for revision in {r.root: r for r in (known.current, known.previous) if r is not None}.values():
        await _discard(shop, known, revision, keep=())
    await asyncio.to_thread(_remove_run_state, shop, identity.uid)
    await shop.reloader.reload()
    await shop.systemd.reset_failed(unit)
    await asyncio.to_thread(remove_tree, layout.app(identity.uid))


def remove_tree(directory: Path) -> None:
    """Remove a directory of the agent's own making; one that is still a mountpoint is left. Raises AgentError."""
    if os.path.ismount(directory):
        raise AgentError("StillMounted", f"{directory} is still mounted; unmount it")
    shutil.rmtree(directory, ignore_errors=True)


async def _stop_within(shop: Workshop, unit: str, grace: int | None) -> None:
    stopping = asyncio.ensure_future(shop.systemd.stop(unit))
    try:
        done, _ = await asyncio.wait({stopping}, timeout=grace)
        if not done:
            with contextlib.suppress(AgentError):
                await shop.systemd.kill(unit, 9)
        await stopping
    except UnitGone:
        pass
    finally:
        stopping.cancel()


def _remove_run_state(shop: Workshop, uid: str) -> None:
    directory = shop.layout.sub_paths(uid)
    if directory.exists():
        for mountpoint in directory.iterdir():
            while os.path.ismount(mountpoint):
                subprocess.run(["umount", "--lazy", str(mountpoint)], check=True, timeout=_UNMOUNT_SECONDS)
            mountpoint.rmdir()
        directory.rmdir()
    remove_tree(shop.layout.open_secrets(uid))
    output.forget(shop.layout, uid)
