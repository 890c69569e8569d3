"""Keeps one application as it is wanted: takes the steps that agent.plan names, one by one.

Each application has a keeper of its own, so that a slow or failing one delays no other.
"""

import asyncio
import contextlib
import logging
import secrets as randomness
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from agent import fetch, launch, marks, neighbours, ports, record, rootfs, secrets, starter, teardown, units, users
from agent.errors import AgentError
from agent.images.store import Image
from agent.images.view import ImageView
from agent.plan import Seen, Step, Wanted, next_step
from agent.record import Record, Revision, Rollout
from agent.sight import Frame, Sight
from agent.systemd import UnitState
from agent.unit_files import UnitFiles
from agent.units import Identity
from agent.vault import Vault
from agent.wish import Wish
from agent.workshop import Workshop
from horchestra.apimachinery.desired import Removal
from horchestra.kinds.application import ApplicationSpec, ApplicationStatus

log = logging.getLogger("horchestra.keeper")

RECONCILE_SECONDS = 10.0
"""Longest time until something changed by hand is put right."""
_FULL_LOOK_SECONDS = 300.0
"""The same for what leaves no mark on its files."""
_PORT_SECONDS, _PORT_WAIT = 0.1, 10.0
_PORT_RETRY = 2.0
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 300.0
_START_SECONDS = 60.0
_COUNT_SECONDS = 0.3
_MAX_STEPS = 20


class Keeper:
    """`wish` None: no desired state names it (an orphan), and it is kept up as it was."""

    def __init__(self, shop: Workshop, identity: Identity, known: Record | None, wish: Wish | None) -> None:
        self._shop = shop
        self.identity = identity
        self.record = known or Record(identity.namespace, identity.name, identity.uid, salt=randomness.token_hex(16))
        self.wish = wish
        self.removal: Removal | None = None
        self.removed = False
        self._directory = shop.layout.app(identity.uid)
        self._files = UnitFiles(shop, identity, self.record)
        self._vault = Vault(shop, identity, self.record, self._files)
        self._sight = Sight(shop, identity, self.record, self._frame)
        self._error: AgentError | None = None
        self._failures = 0
        self._said = ""
        self._notes: dict[str, tuple[str, str]] = {}
        self._wake = asyncio.Event()
        self._news = asyncio.Event()

    # What others ask and tell

    @property
    def status(self) -> ApplicationStatus:
        return self._sight.status

    @property
    def unit(self) -> UnitState:
        return self._sight.unit

    @property
    def generation(self) -> int:
        """The one its status speaks of."""
        if self.wish is not None:
            return self.wish.generation
        return self.record.current.generation if self.record.current else 0

    async def observe(self) -> None:
        await self._sight.look()

    def want(self, wish: Wish | None) -> None:
        """The newest word of the controller."""
        if wish == self.wish:
            return
        if (wish is None) != (self.wish is None):
            self._shop.changed(self.identity.uid)
        if wish is None or self.wish is None or wish.generation != self.wish.generation:
            self._news.set()
            self._failures = 0
        self.wish = wish
        self._wake.set()

    def remove(self, removal: Removal) -> None:
        if self.removal is None:
            self.removal = removal
            self._news.set()
            self._wake.set()

    def poke(self) -> None:
        """Something changed on the node."""
        self._wake.set()

    # Life

    async def run(self) -> None:
        """Until the application is removed; errors are told and tried again, never raised."""
        await self.observe()
        async with self._shop.holding(self.identity.unit, self._wait_for_predecessor):
            self._error = None
            while not self.removed:
                self._wake.clear()
                before = self._files.marks()
                pause = await self._round()
                if self.removed:
                    break
                await self.observe()
                await self._rest(pause, before)
        self._sight.close()

    async def _wait_for_predecessor(self) -> bool:
        """An application of the same name is still on this node. True when this one is to be removed meanwhile."""
        text = f"another application still has the unit {self.identity.unit} on this node; it must be removed first"
        self._error = AgentError("WaitingForPredecessor", text)
        await self.observe()
        await self._news.wait()
        self._news.clear()
        if self.removal is not None and self.record.current is None:
            self.removed = True
        return self.removed

    async def _rest(self, pause: float, before: marks.Marks) -> None:
        """Until something is told, due, or changed by hand since `before`."""
        quiet = pause == RECONCILE_SECONDS and self._error is None
        end = time.monotonic() + (_FULL_LOOK_SECONDS if quiet else pause)
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
                return
            if not quiet or self._files.marks() != before:
                return

    async def _round(self) -> float:
        """Steps until there is nothing to do; returns the seconds until it should look again by itself."""
        try:
            for _ in range(_MAX_STEPS):
                self._news.clear()
                if self.removal is not None:
                    await self._remove(self.removal)
                    return 0
                try:
                    step, pause = await self._next()
                    if step is Step.IDLE:
                        self._error, self._failures = None, 0
                        return pause
                    await self._take(step)
                except fetch.SupersededError:
                    continue
            return _FIRST_RETRY
        except AgentError as error:
            return self._failed(error)
        except Exception as error:
            log.exception("%s/%s: unexpected", self.identity.namespace, self.identity.name)
            return self._failed(AgentError("InternalError", f"{type(error).__name__}: {error}"))

    def _failed(self, error: AgentError) -> float:
        self._error = error
        self._failures += 1
        text = f"{error.reason}: {error.message}"
        if text != self._said:
            self._said = text
            log.warning("%s/%s: %s", self.identity.namespace, self.identity.name, text)
            self._sight.tell("Warning", error.reason, error.message)
        if error.retry_after is not None:
            return error.retry_after
        return min(_FIRST_RETRY * 2.0 ** (self._failures - 1), _LONGEST_RETRY)

    # Seeing

    @property
    def _spec(self) -> ApplicationSpec:
        """Of the wanted generation, else of what runs."""
        if self.wish is not None and self.wish.generation != self.record.failed_generation:
            return self.wish.application.spec
        return self.record.current.parsed if self.record.current else ApplicationSpec(image="")

    def _frame(self) -> Frame:
        notes = {**self._notes, **self._vault.notes}
        return Frame(self._spec, self.generation, self._error, self.removal is not None, notes)

    async def _next(self) -> tuple[Step, float]:
        await self.observe()
        current, unit = self.record.current, self._sight.unit
        if self.wish is None and current is None:
            return Step.IDLE, RECONCILE_SECONDS
        if current is not None:
            await self._vault.refresh(self.wish, running=unit.running)
            current = self.record.current or current
            self._notes = await asyncio.to_thread(neighbours.notes, self._shop, self.identity, current.launch)
        spec = self._spec
        wanted = Wanted(self.generation, spec.restartPolicy, spec.progressDeadlineSeconds, spec.activeDeadlineSeconds)
        right = current is not None and await asyncio.to_thread(self._files.right, current, unit)
        seen = self._sight.seen(files_right=right, runs_edited=self._files.run_edited(unit))
        step = next_step(wanted, seen)
        if unit.running and not seen.runs_edited and unit.invocation != self.record.invocation:
            self.record.invocation = unit.invocation
            await self._save()
        pause = _pause(wanted, seen, spec)
        return step, min(pause, _COUNT_SECONDS) if self._sight.counting else pause

    # Doing

    async def _take(self, step: Step) -> None:
        current = self.record.current
        if step is Step.PREPARE:
            async with self._shop.needing_images():
                await self._prepare()
            return
        assert current is not None
        steps: dict[Step, Callable[[Revision], Awaitable[None]]] = {
            Step.WRITE: self._write,
            Step.MOUNT: self._mount,
            Step.RESTART: self._restart,
            Step.START: self._start,
            Step.STOP_OVERDUE: self._stop_overdue,
            Step.SETTLE: self._settle,
            Step.ROLL_BACK: self._roll_back,
        }
        await steps[step](current)

    async def _prepare(self) -> None:
        """Make the wanted generation the current one."""
        wish, current = self.wish, self.record.current
        assert wish is not None
        image = await self._image(wish)
        view = ImageView(image.layers)
        new = await asyncio.to_thread(self._revision, wish, image, view)
        neighbours.refuse(self._shop, self.identity, new.launch)
        if current is not None and current.launch.key == new.launch.key:
            # The same process: only files change.
            await self._become(replace(new, root=current.root, layers=current.layers, secrets=current.secrets))
            return
        await self._replace(await self._assemble(new, view, wish))

    async def _image(self, wish: Wish) -> Image:
        image = fetch.local(self._shop, self.record, wish)
        if image is not None:
            return image
        pulling = fetch.fetch(self._shop, wish, self._sight.pulling, self._sight.tell)
        try:
            return await fetch.unless(self._news, asyncio.create_task(pulling))
        finally:
            self._sight.pulling(None)

    def _revision(self, wish: Wish, image: Image, view: ImageView) -> Revision:
        """What `wish` comes to with its image; root and secrets are still open. Raises AgentError."""
        spec = wish.application.spec

        def own_uid() -> int:
            return self._shop.identities.uid(self.identity.namespace, self.identity.name)

        account = users.resolve(view, image.config.user, spec.securityContext, own_uid)
        uids = {name: volume.metadata.uid for name, volume in wish.volumes.items()}
        return Revision(
            generation=wish.generation,
            spec=spec.model_dump(mode="json"),
            reference=str(image.reference),
            digest=image.digest,
            layers=tuple(path.name for path in image.layers),
            launch=launch.build(spec, image.config, view, image.digest, account, uids),
            root=0,
            stop_signal=image.config.stop_signal,
        )

    async def _become(self, revision: Revision) -> None:
        self.record.current = revision
        self.record.failed_generation, self.record.failed_message = 0, ""
        await self._save()

    async def _assemble(self, new: Revision, view: ImageView, wish: Wish) -> Revision:
        """Root, accounts, volumes and sealed secrets of a revision, beside what runs."""
        await self._shop.accounts.ensure(new.launch.account)
        for name in {mount.pv for mount in wish.application.spec.volumeMounts if mount.pv}:
            await asyncio.to_thread(self._shop.volumes.ensure, wish.volumes[name], wish.lineage)
        await self._prepare_volumes(new, view)
        current = self.record.current
        entries = await asyncio.to_thread(rootfs.skeleton, view, new.launch)
        if current is not None and _same_root(current, new):
            new = replace(new, root=current.root)
        else:
            new = replace(new, root=self._shop.new_root())
            await asyncio.to_thread(rootfs.write, entries, self._shop.layout.skeleton(new.root))
        if secrets.needed(new.launch):
            new = replace(new, secrets=await self._vault.seal(new, wish))
        return new

    async def _prepare_volumes(self, revision: Revision, view: ImageView) -> None:
        account, group = revision.launch.account, revision.parsed.securityContext.fsGroup
        for mount in revision.launch.mounts:
            if mount.kind == "pv":
                prepare = self._shop.volumes.prepare
                await asyncio.to_thread(prepare, mount.source, mount.path, mount.sub, account, group, view)

    async def _replace(self, new: Revision) -> None:
        """Stop what runs, put `new` in its place, start it."""
        old = self.record.current
        if old is not None:
            finished = self._sight.finished
            await self._stop(old)
            if self.record.previous is None and not finished and new.parsed.restartPolicy != "Never":
                self.record.previous = old
            else:
                keep = [new, *([self.record.previous] if self.record.previous else [])]
                await teardown.discard(self._shop, self.record, old, keep)
            self.record.rollout = Rollout(self._shop.boot, time.clock_gettime(time.CLOCK_BOOTTIME))
        await asyncio.to_thread(starter.forget_backoff, self._directory, job_too=True)
        record.keep_image(self.record, new.digest)
        await self._become(new)
        await self._write(new)
        self._sight.tell("Normal", "Created", f"wrote {self.identity.unit} of generation {new.generation}")
        await self._start(new)

    async def _write(self, revision: Revision) -> None:
        await self._files.write(revision, self._sight.unit)
        await self._save()
        self._sight.publish()

    async def _mount(self, revision: Revision) -> None:
        self._sight.tell("Warning", "RootUnmounted", "somebody unmounted the root file system; mounting it again")
        await self._shop.systemd.start(units.mount_unit(revision.root, self._shop.layout), seconds=_START_SECONDS)

    async def _restart(self, _: Revision) -> None:
        self._sight.tell("Normal", "Restarting", "the process was started from an edited unit file")
        await self._shop.systemd.restart(self.identity.unit, seconds=_START_SECONDS)

    async def _stop(self, revision: Revision) -> None:
        """Stop the process and wait until the ports it declared are free."""
        spec = revision.parsed
        await self._shop.systemd.stop(self.identity.unit, seconds=spec.terminationGracePeriodSeconds + 30)
        await self._shop.systemd.stop(starter.unit(self.identity.uid), seconds=10)
        await self.observe()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PORT_WAIT):
                await _ports_free(spec)

    async def _stop_overdue(self, revision: Revision) -> None:
        await self._stop(revision)
        end = starter.Finished("Failed", "DeadlineExceeded")
        await asyncio.to_thread(starter.write_finished, self._directory, end)

    async def _start(self, revision: Revision) -> None:
        """Start it, or say what is in the way. Raises AgentError PortConflict, RootNotMounted."""
        await self._check_ports(revision)
        view = ImageView([self._shop.layout.layers / name for name in revision.layers])
        await self._prepare_volumes(revision, view)
        await self._shop.accounts.ensure(revision.launch.account)
        result = await self._shop.systemd.start(self.identity.unit, seconds=_START_SECONDS)
        if result != "dependency":
            return
        mount = await self._shop.systemd.state(units.mount_unit(revision.root, self._shop.layout))
        if mount.active == "failed":
            raise AgentError(
                "RootNotMounted",
                f"{mount.name} failed ({mount.result}): the root file system could not be mounted; "
                f"see journalctl -u '{mount.name}' on the node",
            )
        await self.observe()

    async def _check_ports(self, revision: Revision) -> None:
        held = await _held_ports(revision.parsed)
        foreign = [listener for listener in held if listener.unit != self.identity.unit]
        if foreign:
            text = "; ".join(map(str, foreign))
            raise AgentError("PortConflict", f"{text}; stop it or declare another port", retry_after=_PORT_RETRY)

    async def _settle(self, current: Revision) -> None:
        """The new revision is Ready: what is kept for going back is dropped."""
        previous = self.record.previous
        self.record.previous, self.record.rollout = None, None
        await self._save()
        if previous is not None:
            await teardown.discard(self._shop, self.record, previous, [current])

    async def _roll_back(self, failed: Revision) -> None:
        previous = self.record.previous
        assert previous is not None
        last = self.status.message
        await self._stop(failed)
        self.record.failed_generation = failed.generation
        self.record.failed_message = (
            f"generation {failed.generation} was not Ready within {failed.parsed.progressDeadlineSeconds} s"
            f"{f' ({last})' if last else ''}; generation {previous.generation} runs again. "
            "What the new version changed in its volumes is not undone"
        )
        self.record.current, self.record.previous, self.record.rollout = previous, None, None
        await asyncio.to_thread(starter.forget_backoff, self._directory, job_too=True)
        await self._save()
        await self._write(previous)
        self._sight.tell("Warning", "RolledBack", self.record.failed_message)
        await teardown.discard(self._shop, self.record, failed, [previous])
        await self._start(previous)

    async def _remove(self, removal: Removal) -> None:
        await self.observe()
        await teardown.remove(self._shop, self.identity, self.record, removal.grace_seconds)
        self.removed = True
        name = f"{self.identity.namespace}/{self.identity.name}"
        self._sight.tell("Normal", "Removed", f"nothing of {name} is left on the node")

    async def _save(self) -> None:
        await record.save(self._directory, self.record)


async def _held_ports(spec: ApplicationSpec) -> list[ports.Listener]:
    wanted = [(port.port, port.protocol) for port in spec.ports]
    return await asyncio.to_thread(ports.listeners, wanted) if wanted else []


async def _ports_free(spec: ApplicationSpec) -> None:
    while await _held_ports(spec):  # nothing announces that a socket was closed  # noqa: ASYNC110
        await asyncio.sleep(_PORT_SECONDS)


def _same_root(one: Revision, other: Revision) -> bool:
    """The same layers and the same mountpoints: a mounted root can be used again."""
    return one.layers == other.layers and _points(one) == _points(other)


def _points(revision: Revision) -> tuple[object, ...]:
    return revision.launch.working_dir, sorted(mount.path for mount in revision.launch.mounts)


def _pause(wanted: Wanted, seen: Seen, spec: ApplicationSpec) -> float:
    """Seconds until something is due by time alone."""
    due = [RECONCILE_SECONDS]
    if seen.unit.running and not seen.ready:
        due.append(spec.minReadySeconds - (time.monotonic_ns() // 1000 - seen.unit.started_mono) / 1e6)
    if seen.record.previous is not None:
        due.append(wanted.progress_deadline - seen.rollout_age)
    if wanted.active_deadline is not None:
        due.append(wanted.active_deadline - seen.active)
    return max(min(due), 0.05)
