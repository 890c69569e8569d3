"""One keeper for each application on the node, and the stream of systemd's changes shared out among them."""

import asyncio
import logging

from agent import record, starter, units
from agent.errors import AgentError
from agent.keeper import Keeper
from agent.systemd import EVERYTHING
from agent.units import Identity
from agent.wish import Wish
from agent.workshop import Workshop
from horchestra.apimachinery.desired import Removal

log = logging.getLogger("horchestra.reconciler")


class Reconciler:
    """`run` owns all tasks; the other methods only tell the keepers."""

    def __init__(self, shop: Workshop) -> None:
        self._shop = shop
        self.keepers: dict[str, Keeper] = {}
        self._started: set[str] = set()
        self._new = asyncio.Event()
        self.unreadable: set[str] = set()
        """Directories of applications that left no record that can be read."""

    def load(self) -> None:
        """Keepers for everything recorded on disk: what no desired state names is kept up all the same."""
        if not self._shop.layout.apps.exists():
            return
        for directory in sorted(self._shop.layout.apps.iterdir()):
            try:
                known = record.load(directory)
            except AgentError as error:
                log.error("%s: what runs goes on; it is kept up again when the controller has named it", error)
                self.unreadable.add(directory.name)
                continue
            if known is not None and known.uid == directory.name:
                self.keepers[known.uid] = Keeper(self._shop, known.identity, known, None)

    def want(self, wishes: dict[str, Wish]) -> None:
        """The newest desired state by uid. Who is not in it goes on as an orphan."""
        for uid, wish in wishes.items():
            keeper = self.keepers.get(uid)
            if keeper is None:
                meta = wish.application.metadata
                identity = Identity(meta.namespace, meta.name, uid)
                self.keepers[uid] = Keeper(self._shop, identity, None, wish)
            else:
                keeper.want(wish)
        for uid, keeper in self.keepers.items():
            if uid not in wishes:
                keeper.want(None)
        self._new.set()

    def remove(self, removal: Removal) -> bool:
        """True when nothing of that uid is here (any more)."""
        keeper = self.keepers.get(removal.uid)
        if keeper is None and removal.uid in self.unreadable:
            keeper = Keeper(self._shop, Identity(removal.namespace, removal.name, removal.uid), None, None)
            self.keepers[removal.uid] = keeper
            self._new.set()
        if keeper is None:
            return True
        keeper.remove(removal)
        return False

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            while True:
                self._new.clear()
                for uid, keeper in list(self.keepers.items()):
                    if uid not in self._started:
                        self._started.add(uid)
                        tasks.create_task(self._keep(uid, keeper))
                await self._new.wait()

    async def _keep(self, uid: str, keeper: Keeper) -> None:
        await keeper.run()
        self.keepers.pop(uid, None)
        self.unreadable.discard(uid)
        self._started.discard(uid)
        self._shop.changed(uid)

    async def _watch(self) -> None:
        async for changed in self._shop.systemd.changes():
            if EVERYTHING in changed:
                touched = list(self.keepers.values())
            else:
                touched = [keeper for keeper in self.keepers.values() if self._concerns(keeper) & changed]
            # One at a time: a hundred states are read in a tenth of a second, and none is read twice at once.
            for keeper in touched:
                await keeper.observe()
                keeper.poke()

    def _concerns(self, keeper: Keeper) -> set[str]:
        names = {keeper.identity.unit, starter.unit(keeper.identity.uid)}
        if keeper.record.current is not None:
            names.add(units.mount_unit(keeper.record.current.root, self._shop.layout))
        return names
