"""What the keepers of all applications share: the host's parts, and the queue in front of daemon-reload."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from agent import durable, units
from agent.images.registry import RegistryConfig, RegistryGates
from agent.images.store import ImageStore
from agent.layout import Layout
from agent.probes import Abilities
from agent.secrets import Sealing
from agent.systemd import Systemd
from agent.units import Host, UnitFile
from agent.users import HostAccounts, Identities
from agent.volumes import Volumes

_BATCH_SECONDS = 0.01


class Reloader:
    """daemon-reload for many at once: a caller's writes are read by the next reload that begins after the call."""

    def __init__(self, systemd: Systemd) -> None:
        self._systemd = systemd
        self._running = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def reload(self) -> None:
        if self._next is None:
            self._next = asyncio.create_task(self._run())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._ended)
        await asyncio.shield(self._next)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Callers learn of a failure from their own await; when all of them are gone nobody needs to."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def _run(self) -> None:
        async with self._running:
            await asyncio.sleep(_BATCH_SECONDS)
            self._next = None
            await self._systemd.reload()


@dataclass(slots=True)
class Workshop:
    """`tell(namespace, name, uid, type, reason, message)` records an Event; `changed(uid)`: its report is new."""

    node: str
    layout: Layout
    systemd: Systemd
    reloader: Reloader
    store: ImageStore
    registry: RegistryConfig
    gates: RegistryGates
    pulls: asyncio.Semaphore
    volumes: Volumes
    accounts: HostAccounts
    identities: Identities
    abilities: Abilities
    boot: str
    tell: Callable[[str, str, str, str, str, str], None]
    changed: Callable[[str], None]
    sharing: Callable[[str, int], list[str]]
    """Names of other applications that run as this uid (application uid, user id)."""
    addresses: tuple[str, ...] = ()
    _units: dict[str, asyncio.Lock] = field(default_factory=dict)
    _root: int = 0
    _collecting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _needing: int = 0

    @property
    def host(self) -> Host:
        return Host(self.layout, self.abilities.systemd, self.abilities.own_processes)

    @property
    def sealing(self) -> Sealing:
        return "credential" if self.abilities.sealed_secrets else "plain"

    @contextlib.asynccontextmanager
    async def holding(self, unit: str, waiting: Callable[[], Awaitable[bool]]) -> AsyncIterator[None]:
        """One keeper for a unit. While another has it, `waiting` is run again and again; True gives up waiting."""
        lock = self._units.setdefault(unit, asyncio.Lock())
        turn = asyncio.create_task(lock.acquire())
        try:
            await asyncio.sleep(0)  # a free unit is had at once
            while not turn.done():
                if not turn.done() and await _first(turn, waiting):
                    break
            yield
        finally:
            if turn.done() and not turn.cancelled():
                lock.release()
            turn.cancel()

    @contextlib.asynccontextmanager
    async def needing_images(self) -> AsyncIterator[None]:
        """No image is removed meanwhile."""
        async with self._collecting:
            self._needing += 1
        try:
            yield
        finally:
            self._needing -= 1

    async def collect_images(self, keep: set[str]) -> list[str]:
        """Remove the images with other digests and what only they need; nothing while an image is being put to use."""
        async with self._collecting:
            return [] if self._needing else await asyncio.to_thread(self._remove_unused, keep)

    def _remove_unused(self, keep: set[str]) -> list[str]:
        return self.store.remove_unused(keep, units.layers_in_use(self.layout))

    def new_root(self) -> int:
        """A number that no root on this disk has."""
        if not self._root:
            used = [self.layout.root(0).parent, self.layout.skeleton(0).parent]
            names = [path.name for parent in used if parent.exists() for path in parent.iterdir()]
            self._root = max((int(name) for name in names if name.isdecimal()), default=0)
        self._root += 1
        return self._root

    def unit_is_right(self, unit: UnitFile) -> bool:
        """Whether the file, and the symlink that starts it at boot, are on disk as they should be."""
        path = self.layout.units / unit.name
        try:
            right = not path.is_symlink() and path.read_bytes() == unit.text.encode()
        except OSError:
            return False
        return right and (not unit.wanted_by or self._link(unit).is_symlink())

    def write_unit(self, unit: UnitFile) -> None:
        durable.write_if_changed(self.layout.units / unit.name, unit.text.encode(), 0o644)
        if not unit.wanted_by:
            return
        link = self._link(unit)
        if link.is_symlink():
            return
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(f"../{unit.name}")
        durable.sync_directory(link.parent)

    def remove_unit(self, name: str, wanted_by: str = "") -> None:
        if wanted_by:
            durable.remove(self._link(UnitFile(name, "", wanted_by)))
        durable.remove(self.layout.units / name)

    def _link(self, unit: UnitFile) -> Path:
        return self.layout.units / f"{unit.wanted_by}.wants" / unit.name


async def _first(turn: "asyncio.Task[bool]", waiting: Callable[[], Awaitable[bool]]) -> bool:
    """Run `waiting` until it ends or `turn` has come; True when it ended first and says so."""
    other = asyncio.ensure_future(waiting())
    try:
        await asyncio.wait({turn, other}, return_when=asyncio.FIRST_COMPLETED)
        return other.done() and other.result()
    finally:
        other.cancel()
