"""Keeps one application as it is wanted: takes the steps that agent.plan names, one by one, and tells what it sees.

Each application has a keeper of its own, so that a slow or failing one delays no other.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets as randomness
import shutil
import subprocess
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent import durable, launch, marks, output, ports, record, rootfs, secrets, starter, status, units, users
from agent.errors import AgentError
from agent.images.credentials import RegistryCredentials
from agent.images.pull import PullProgress, pull
from agent.images.reference import ImageReference
from agent.images.registry import RegistryClient
from agent.images.store import Image
from agent.images.view import ImageView
from agent.oom import MemoryWatch
from agent.plan import Seen, Step, Wanted, next_step
from agent.record import Record, Revision, Rollout
from agent.systemd import UnitState
from agent.units import Identity
from agent.workshop import Workshop
from horchestra.apimachinery.desired import Removal, SecretData
from horchestra.kinds.application import Application, ApplicationSpec, ApplicationStatus
from horchestra.kinds.persistentvolume import PersistentVolume

log = logging.getLogger("horchestra.keeper")

RECONCILE_SECONDS = 10.0
"""Longest time until something changed by hand is put right."""
_FULL_LOOK_SECONDS = 300.0
"""The same for what leaves no mark on its files."""
_PORT_SECONDS, _PORT_WAIT = 0.1, 10.0
_PORT_RETRY = 2.0
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 300.0
_START_SECONDS = 60.0
_PULL_REPORT_SECONDS = 2.0
_COUNT_SECONDS, _COUNTED_AFTER = 0.3, 3_000_000
_MAX_STEPS = 20


@dataclass(frozen=True, slots=True)
class Wish:
    """What the controller wants of one application, with all it needs of other objects.

    secrets: (Secret|ConfigMap, name) in its namespace; `values_known` is False after a start of the agent, until the
    controller sends the values again: what is sealed on disk is then used as it is.
    """

    application: Application
    volumes: Mapping[str, PersistentVolume]
    secrets: Mapping[tuple[str, str], SecretData]
    pull_secrets: tuple[SecretData, ...] = ()
    lineage: str = ""
    values_known: bool = True

    @property
    def generation(self) -> int:
        return self.application.metadata.generation


class _SupersededError(Exception):
    """Something newer is wanted than what the step was about."""


class Keeper:
    """`wish` None: no desired state names it (an orphan), and it is kept up as it was."""

    def __init__(self, shop: Workshop, identity: Identity, known: Record | None, wish: Wish | None) -> None:
        self._shop = shop
        self.identity = identity
        self.record = known or Record(identity.namespace, identity.name, identity.uid, salt=randomness.token_hex(16))
        self.wish = wish
        self.removal: Removal | None = None
        self.removed = False
        self.status = ApplicationStatus()
        self.unit = UnitState(identity.unit)
        self._starting = UnitState(starter.unit(identity.uid))
        self._directory = shop.layout.app(identity.uid)
        self._error: AgentError | None = None
        self._failures = 0
        self._pulling: PullProgress | None = None
        self._notes: dict[str, tuple[str, str]] = {}
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._said = ""
        self._observing = asyncio.Lock()
        self._observed = False
        self._next_progress = 0.0
        self._memory: MemoryWatch | None = None
        self._out_of_memory = ""
        self._sealed_from: Mapping[tuple[str, str], SecretData] | None = None

    # What others tell it

    def want(self, wish: Wish | None) -> None:
        """The newest word of the controller."""
        if wish != self.wish:
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
        if self._shop.is_held(self.identity.unit):
            self._error = AgentError("WaitingForPredecessor", "an application of the same name still ends on this node")
            await self.observe()
        async with self._shop.holding(self.identity.unit):
            self._error = None
            while not self.removed:
                self._wake.clear()
                marks_before = self._marks()
                pause = await self._round()
                await self.observe()
                if self.removed:
                    return
                await self._rest(pause, marks_before)

    async def _rest(self, pause: float, before: marks.Marks) -> None:
        """Until something is told, due, or changed by hand since `before`."""
        quiet = pause == RECONCILE_SECONDS and self._error is None
        end = time.monotonic() + (_FULL_LOOK_SECONDS if quiet else pause)
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
                return
            if not quiet or self._marks() != before:
                return

    def _marks(self) -> marks.Marks:
        """Of everything on disk that a round looks at and nobody tells of."""
        layout, current = self._shop.layout, self.record.current
        paths = marks.of_unit(layout.units, self.identity.unit)
        paths += [layout.units / f"{units.WANTED_BY}.wants" / self.identity.unit]
        paths += [self._directory / name for name in ("start.conf", "subpaths")]
        if current is not None:
            paths += [*marks.of_unit(layout.units, units.mount_unit(current.root, layout)), layout.root(current.root)]
        return marks.take(paths)

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
                except _SupersededError:
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
            self._tell("Warning", error.reason, error.message)
        if error.retry_after is not None:
            return error.retry_after
        return min(_FIRST_RETRY * 2.0 ** (self._failures - 1), _LONGEST_RETRY)

    def _tell(self, type: str, reason: str, message: str) -> None:
        self._shop.tell(self.identity.namespace, self.identity.name, self.identity.uid, type, reason, message)

    # Seeing

    @property
    def spec(self) -> ApplicationSpec:
        """Of the wanted generation, else of what runs."""
        if self.wish is not None and self.wish.generation != self.record.failed_generation:
            return self.wish.application.spec
        assert self.record.current is not None
        return _spec(self.record.current)

    @property
    def generation(self) -> int:
        if self.wish is not None:
            return self.wish.generation
        return self.record.current.generation if self.record.current else 0

    async def observe(self) -> None:
        """Look at systemd and at the counters on disk; report when the status is another."""
        async with self._observing:
            with contextlib.suppress(AgentError):
                before, self.unit = self.unit, await self._shop.systemd.state(self.identity.unit)
                self._starting = await self._shop.systemd.state(starter.unit(self.identity.uid))
                self._watch_memory(before)
                if self._observed:
                    self._tell_changes(before, self.unit)
                self._observed = True
            self._publish()

    def _watch_memory(self, before: UnitState) -> None:
        """One watch for each process: its control group is made anew at each start."""
        if not self.unit.running or (self._memory and before.running and before.invocation == self.unit.invocation):
            return
        if self._memory is not None:
            self._memory.close()
        invocation = self.unit.invocation
        self._memory = MemoryWatch(self.unit.control_group, lambda: self._ran_out_of_memory(invocation))

    def _ran_out_of_memory(self, invocation: str) -> None:
        self._out_of_memory = invocation
        self._publish()

    def _publish(self) -> None:
        now = status.compute(self._observation())
        if now != self.status:
            self.status = now
            self._shop.changed(self.identity.uid)

    def _observation(self) -> status.Observation:
        starts = starter.read_starts(self._directory)
        last = starts.previous if self.unit.running else self.unit.invocation
        return status.Observation(
            record=self.record,
            spec=self.spec if self.wish or self.record.current else ApplicationSpec(image=""),
            generation=self.generation,
            unit=self.unit,
            starting=self._starting,
            starts=starts,
            finished=starter.read_finished(self._directory),
            error=self._error,
            pulling=self._pulling,
            notes=self._notes,
            terminating=self.removal is not None,
            node=self._shop.node,
            addresses=self._shop.addresses,
            now=time.time_ns() // 1000,
            uptime=time.monotonic_ns() // 1000,
            out_of_memory=bool(last) and last == self._out_of_memory,
        )

    def _tell_changes(self, before: UnitState, after: UnitState) -> None:
        if after.running and not (before.running and after.invocation == before.invocation):
            self._tell("Normal", "Started", f"started {self.identity.unit} (pid {after.main_pid})")
        if after.exited_at > before.exited_at > 0 or (after.exited_at and not before.exited_at and before.running):
            failed = after.result not in ("success",)
            text = f"the process ended: {after.result}, status {after.exit_status}"
            self._tell("Warning" if failed else "Normal", "Killed" if after.exit_code > 1 else "Exited", text)

    def _seen(self, files_right: bool) -> Seen:
        starts = starter.read_starts(self._directory)
        uptime = time.monotonic_ns() // 1000
        ran = (uptime - self.unit.started_mono) / 1e6 if self.unit.running else 0.0
        rollout = self.record.rollout
        age = 0.0
        if rollout is not None and rollout.boot == self._shop.boot:
            age = time.clock_gettime(time.CLOCK_BOOTTIME) - rollout.began
        return Seen(
            record=self.record,
            unit=self.unit,
            starting=self._starting.active == "activating",
            finished=starter.read_finished(self._directory) is not None,
            ready=status.ready(self.unit, self.spec, uptime),
            files_right=files_right,
            mounted=self.record.current is None or os.path.ismount(self._shop.layout.root(self.record.current.root)),
            runs_edited=self._runs_edited(),
            rollout_age=age,
            active=starts.active + ran,
        )

    async def _next(self) -> tuple[Step, float]:
        await self.observe()
        if self.wish is None and self.record.current is None:
            return Step.IDLE, RECONCILE_SECONDS
        spec = self.spec
        wanted = Wanted(self.generation, spec.restartPolicy, spec.progressDeadlineSeconds, spec.activeDeadlineSeconds)
        if self.record.current is not None:
            await self._refresh_secrets(self.record.current)
            self._note_neighbours(self.record.current)
        right = self.record.current is not None and await asyncio.to_thread(self._files_right, self.record.current)
        seen = self._seen(right)
        step = next_step(wanted, seen)
        if self.unit.running and not seen.runs_edited and self.unit.invocation != self.record.invocation:
            self.record.invocation = self.unit.invocation
            self._save()
        pause = _pause(wanted, seen, spec)
        return step, min(pause, _COUNT_SECONDS) if self._is_counting() else pause

    def _is_counting(self) -> bool:
        """The oneshot began so lately that it may not have written its counters yet; systemd tells nobody when it does."""
        began = self._starting.started_mono
        return self._starting.active == "activating" and time.monotonic_ns() // 1000 - began < _COUNTED_AFTER

    # Doing

    async def _take(self, step: Step) -> None:
        current = self.record.current
        if step is Step.PREPARE:
            await self._prepare()
            return
        assert current is not None
        match step:
            case Step.WRITE:
                await self._write(current)
            case Step.MOUNT:
                self._tell(
                    "Warning", "RootUnmounted", "the root file system was unmounted by somebody; mounting it again"
                )
                await self._shop.systemd.start(
                    units.mount_unit(current.root, self._shop.layout), seconds=_START_SECONDS
                )
            case Step.RESTART:
                self._tell("Normal", "Restarting", "the process was started from an edited unit file")
                await self._shop.systemd.restart(self.identity.unit, seconds=_START_SECONDS)
            case Step.START:
                await self._start(current)
            case Step.STOP_OVERDUE:
                await self._stop(current)
                starter.write_finished(self._directory, starter.Finished("Failed", "DeadlineExceeded"))
            case Step.SETTLE:
                await self._settle()
            case Step.ROLL_BACK:
                await self._roll_back()

    async def _prepare(self) -> None:
        """Make the wanted generation the current one."""
        wish = self.wish
        assert wish is not None
        spec = wish.application.spec
        image = await self._image(wish, spec)
        view = ImageView(image.layers)
        account = await asyncio.to_thread(
            users.resolve, view, image.config.user, spec.securityContext,
            lambda: self._shop.identities.uid(self.identity.namespace, self.identity.name),
        )  # fmt: skip
        uids = {name: volume.metadata.uid for name, volume in wish.volumes.items()}
        started = await asyncio.to_thread(launch.build, spec, image.config, view, image.digest, account, uids)
        self._refuse_neighbours(started)
        current = self.record.current
        new = Revision(
            generation=wish.generation,
            spec=spec.model_dump(mode="json"),
            reference=str(image.reference),
            digest=image.digest,
            layers=tuple(path.name for path in image.layers),
            launch=started,
            root=0,
            stop_signal=image.config.stop_signal,
        )
        if current is not None and current.launch.key == started.key:
            # The same process: only files change. What failed before is another spec now.
            self._become(replace(new, root=current.root, layers=current.layers, secrets=current.secrets))
            await self._write_if_wrong()
            return
        new = await self._assemble(new, view, wish)
        await self._replace(new)

    def _become(self, revision: Revision) -> None:
        self.record.current = revision
        self.record.failed_generation, self.record.failed_message = 0, ""
        self._save()

    async def _image(self, wish: Wish, spec: ApplicationSpec) -> Image:
        """The image of a generation: from the disk where the policy allows it, else pulled."""
        reference = ImageReference.parse(spec.image)
        if spec.imagePullPolicy != "Always" and (image := self._local(reference)):
            return image
        if spec.imagePullPolicy == "Never":
            raise AgentError("ImageNeverPulled", f"{reference} is not on this node, and imagePullPolicy is Never")
        credentials = RegistryCredentials()
        for data in wish.pull_secrets:
            if not data.missing and ".dockerconfigjson" in data.data:
                raw = secrets.decoded(data, ".dockerconfigjson")
                credentials = credentials.merged(RegistryCredentials.from_docker_config(raw))
        client = RegistryClient(self._shop.registry, credentials, self._shop.gates)
        self._pulling = PullProgress()
        self._tell("Normal", "Pulling", f"pulling image {reference}")
        began = time.monotonic()
        try:
            await self.observe()
            async with self._shop.pulls:
                image = await self._unless_superseded(
                    pull(reference, client=client, store=self._shop.store, progress=self._progress)
                )
        finally:
            received, self._pulling = self._pulling, None
        size = f"{received.bytes_total / 2**20:.1f} MiB in " if received and received.bytes_total else ""
        self._tell("Normal", "Pulled", f"image {reference} is here ({size}{time.monotonic() - began:.1f} s)")
        return image

    def _local(self, reference: ImageReference) -> Image | None:
        """The image that the name stands for here already: the one that runs, else the only one of that name."""
        if reference.digest:
            return self._shop.store.image(reference.digest)
        current = self.record.current
        if current is not None and current.reference == str(reference):
            return self._shop.store.image(current.digest)
        known = [image for image in self._shop.store.images() if str(image.reference) == str(reference)]
        return known[0] if len(known) == 1 else None

    def _progress(self, progress: PullProgress) -> None:
        """Told by the pull at each change; the status follows at most every two seconds."""
        self._pulling = progress
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_progress:
            self._next_progress = loop.time() + _PULL_REPORT_SECONDS
            self._publish()

    async def _unless_superseded(self, work: Coroutine[Any, Any, Image]) -> Image:
        """The result of `work`, unless something newer is wanted meanwhile: then it is cancelled."""
        task = asyncio.ensure_future(work)
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait({task, news}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise _SupersededError
            return task.result()
        finally:
            news.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

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
            new = replace(new, secrets=await self._seal(new, wish))
        return new

    async def _prepare_volumes(self, revision: Revision, view: ImageView) -> None:
        context = _spec(revision).securityContext
        for mount in revision.launch.mounts:
            if mount.kind == "pv":
                await asyncio.to_thread(
                    self._shop.volumes.prepare, mount.source, mount.path, mount.sub, revision.launch.account,
                    context.fsGroup, view,
                )  # fmt: skip

    async def _replace(self, new: Revision) -> None:
        """Stop what runs, put `new` in its place, start it."""
        old = self.record.current
        if old is not None:
            finished = starter.read_finished(self._directory) is not None
            await self._stop(old)
            if self.record.previous is None and not finished and _spec(new).restartPolicy != "Never":
                self.record.previous = old
            elif self.record.previous is not None:
                await self._discard(old, keep=(self.record.previous, new))
            elif finished:
                await self._discard(old, keep=(new,))
            self.record.rollout = Rollout(self._shop.boot, time.clock_gettime(time.CLOCK_BOOTTIME))
        await asyncio.to_thread(starter.forget_backoff, self._directory, job_too=True)
        record.keep_image(self.record, new.digest)
        self._become(new)
        await self._write(new)
        self._tell("Normal", "Created", f"wrote {self.identity.unit} of generation {new.generation}")
        await self._start(new)

    async def _stop(self, revision: Revision) -> None:
        """Stop the process and wait until the ports it declared are free."""
        spec = _spec(revision)
        grace = spec.terminationGracePeriodSeconds
        await self._shop.systemd.stop(self.identity.unit, seconds=grace + 30)
        await self._shop.systemd.stop(starter.unit(self.identity.uid), seconds=10)
        await self.observe()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PORT_WAIT):
                await _ports_free(spec)

    async def _start(self, revision: Revision) -> None:
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
        held = await _held_ports(_spec(revision))
        foreign = [listener for listener in held if listener.unit != self.identity.unit]
        if foreign:
            text = "; ".join(map(str, foreign))
            raise AgentError("PortConflict", f"{text}; stop it or declare another port", retry_after=_PORT_RETRY)

    async def _settle(self) -> None:
        """The new revision is Ready: what is kept for going back is dropped."""
        current, previous = self.record.current, self.record.previous
        assert current is not None
        self.record.previous, self.record.rollout = None, None
        self._save()
        if previous is not None:
            await self._discard(previous, keep=(current,))

    async def _roll_back(self) -> None:
        failed, previous = self.record.current, self.record.previous
        assert failed is not None
        assert previous is not None
        last = self.status.message
        await self._stop(failed)
        self.record.failed_generation = failed.generation
        self.record.failed_message = (
            f"generation {failed.generation} was not Ready within {_spec(failed).progressDeadlineSeconds} s"
            f"{f' ({last})' if last else ''}; generation {previous.generation} runs again. "
            "What the new version changed in its volumes is not undone"
        )
        self.record.current, self.record.previous, self.record.rollout = previous, None, None
        await asyncio.to_thread(starter.forget_backoff, self._directory, job_too=True)
        self._save()
        await self._write(previous)
        self._tell("Warning", "RolledBack", self.record.failed_message)
        await self._discard(failed, keep=(previous,))
        await self._start(previous)

    async def _discard(self, revision: Revision, keep: tuple[Revision, ...]) -> None:
        """Remove root and sealed secrets of a revision, but for what those in `keep` use as well."""
        layout = self._shop.layout
        if revision.root not in {kept.root for kept in keep}:
            name = units.mount_unit(revision.root, layout)
            await self._shop.systemd.stop(name, seconds=30)
            await asyncio.to_thread(self._shop.remove_unit, name)
            for directory in (layout.skeleton(revision.root), layout.root(revision.root)):
                await asyncio.to_thread(_remove_tree, directory)
            self.record.written.pop(name, None)
            await self._shop.reloader.reload()
        if revision.secrets and revision.secrets not in {kept.secrets for kept in keep}:
            await asyncio.to_thread(_remove_tree, self._directory / revision.secrets)

    # Files

    def _rendered(self, revision: Revision) -> list[units.UnitFile]:
        root = units.Root(revision.root, revision.layers)
        return units.render(
            self.identity, _spec(revision), revision.launch, root, self._shop.host, revision.stop_signal
        )

    def _rules(self, revision: Revision) -> bytes:
        spec = _spec(revision)
        never = 0 if spec.restartPolicy == "Never" else -1
        return starter.StartRules(
            unit=self.identity.unit,
            policy=spec.restartPolicy,
            retries=never if spec.backoffLimit is None else spec.backoffLimit,
            deadline=spec.activeDeadlineSeconds or 0,
            sealed=self._shop.sealing if revision.secrets else "",
            secrets=revision.secrets,
        ).text()

    def _sub_paths(self, revision: Revision) -> bytes:
        return "".join(
            f"{index} {mount.source} {'/'.join(part for part in mount.sub.split('/') if part not in ('', '.'))}\n"
            for index, mount in enumerate(revision.launch.mounts)
            if mount.kind == "pv" and mount.sub
        ).encode()

    def _files_right(self, revision: Revision) -> bool:
        return (
            all(self._shop.unit_is_right(unit) for unit in self._rendered(revision))
            and _holds(self._directory / "start.conf", self._rules(revision))
            and _holds(self._directory / "subpaths", self._sub_paths(revision))
            and not self.unit.needs_reload
            and not self._own_drop_ins()
        )

    async def _write_if_wrong(self) -> None:
        assert self.record.current is not None
        if not await asyncio.to_thread(self._files_right, self.record.current):
            await self._write(self.record.current)

    async def _write(self, revision: Revision) -> None:
        """Write what is not as rendered, and have systemd read it."""
        systemd, names = self._shop.systemd, [unit.name for unit in self._rendered(revision)]
        unread = not any([await systemd.has_read(name) for name in names])
        await asyncio.to_thread(self._write_files, revision)
        # A unit that systemd has never seen is read when it is asked for; a reload takes 100 ms, more with every unit.
        if not (unread and all([await systemd.has_read(name) for name in names])):
            await self._shop.reloader.reload()
        self._save()
        await self.observe()

    def _write_files(self, revision: Revision) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._shop.layout.root(revision.root).mkdir(parents=True, exist_ok=True)
        durable.write_if_changed(self._directory / "start.conf", self._rules(revision))
        durable.write_if_changed(self._directory / "subpaths", self._sub_paths(revision))
        for path in self._own_drop_ins():
            durable.remove(path)
        for unit in self._rendered(revision):
            self._shop.write_unit(unit)
            self.record.written[unit.name] = hashlib.sha256(unit.text.encode()).hexdigest()

    def _own_drop_ins(self) -> list[Path]:
        """Drop-ins for this unit alone, made by hand (systemctl edit, systemctl set-property)."""
        return [path for path in map(Path, self.unit.drop_ins) if path.parent.name == f"{self.identity.unit}.d"]

    def _runs_edited(self) -> bool:
        """Whether the process was started from a text that is not ours."""
        if not self.unit.running or self.unit.invocation == self.record.invocation or self.unit.needs_reload:
            return False
        edited = [*self._own_drop_ins()]
        path = self._shop.layout.units / self.identity.unit
        with contextlib.suppress(OSError):
            if hashlib.sha256(path.read_bytes()).hexdigest() != self.record.written.get(self.identity.unit):
                edited.append(path)
        changed = [path.stat().st_mtime_ns // 1000 for path in edited if path.exists()]
        return any(moment <= self.unit.started_at for moment in changed)

    def _save(self) -> None:
        record.save(self._directory, self.record)

    # Secrets

    async def _seal(self, revision: Revision, wish: Wish) -> str:
        """Seal the values for a revision; the name of the directory that holds them."""
        last = await self._unsealed()
        if not wish.values_known:
            raise AgentError("SecretsUnknown", "the values of its secrets come with the next word of the controller")
        gathered = secrets.gather(_spec(revision), revision.launch, wish.secrets, last)
        self._note_missing(gathered.missing)
        digest = gathered.bundle.digest(self.record.salt)
        name = f"secrets-{digest[:16]}"
        if not (self._directory / name).is_dir():
            building = self._directory / f".{name}.new"
            await asyncio.to_thread(_remove_tree, building)
            await secrets.seal(gathered.bundle, self.record.salt, self.identity.uid, building, self._shop.sealing)
            building.rename(self._directory / name)
            durable.sync_directory(self._directory)
        return name

    async def _unsealed(self) -> secrets.Bundle | None:
        current = self.record.current
        if current is None or not current.secrets or not (self._directory / current.secrets).is_dir():
            return None
        return await secrets.unseal(self.identity.uid, self._directory / current.secrets, self._shop.sealing)

    async def _refresh_secrets(self, current: Revision) -> None:
        """Follow changed values: files at once, variables at the next start."""
        wish = self.wish
        if not secrets.needed(current.launch):
            return
        if wish is not None and wish.values_known and wish.secrets != self._sealed_from:
            name = await self._seal(current, wish)
            if name != current.secrets:
                old = current
                current = replace(current, secrets=name)
                self.record.current = current
                self._save()
                await asyncio.to_thread(durable.write_if_changed, self._directory / "start.conf", self._rules(current))
                if self.unit.running:
                    await self._open_secrets()
                kept = (current, self.record.previous) if self.record.previous else (current,)
                await self._discard(old, keep=kept)
            self._sealed_from = wish.secrets
        self._note_restart_required()

    async def _open_secrets(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", str(self._shop.layout.starter), "secrets", self.identity.uid),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate()
        if process.returncode != 0:
            raise AgentError("SecretsUnreadable", errors.decode(errors="replace").strip()[-300:])

    def _note_missing(self, missing: tuple[str, ...]) -> None:
        if missing:
            text = f"{', '.join(missing)} was deleted; its last values are used. Create it again or change spec"
            self._notes["SecretMissing"] = ("Deleted", text)
        else:
            self._notes.pop("SecretMissing", None)

    def _note_restart_required(self) -> None:
        directory = self._shop.layout.open_secrets(self.identity.uid)
        with contextlib.suppress(OSError):
            if (directory / "digest").read_bytes() != (directory / "started").read_bytes() and self.unit.running:
                text = "variables from a Secret or ConfigMap changed; they are read at start: restart the application"
                self._notes["RestartRequired"] = ("EnvironmentChanged", text)
                return
        self._notes.pop("RestartRequired", None)

    # Neighbours

    def _refuse_neighbours(self, started: launch.Launch) -> None:
        """`sandbox` does not start beside another process of its uid."""
        shared = self._shared_with(started)
        if started.profile == "sandbox" and shared and not self._shop.abilities.own_processes:
            raise AgentError("SharedUid", f"profile sandbox refuses to share uid {started.account.uid} with {shared}")

    def _note_neighbours(self, current: Revision) -> None:
        shared = self._shared_with(current.launch)
        self._notes.pop("SharedUid", None)
        if shared and not self._shop.abilities.own_processes:
            text = (
                f"uid {current.launch.account.uid} is also {shared}: their processes can read and signal this one's; "
                "set securityContext.runAsUser to a uid of its own"
            )
            self._notes["SharedUid"] = ("SameUid", text)
        self._notes.pop("PreviousData", None)
        for mount in current.launch.mounts:
            volume = self._shop.volumes.all().get(mount.source) if mount.kind == "pv" else None
            kept = self._shop.volumes.previous(volume.name, volume.uid) if volume else None
            if kept and volume:
                text = f'volume "{volume.name}" is new and empty; data of its name is kept: set spec.adopt: {kept}'
                self._notes["PreviousData"] = ("KeptDataFound", text)

    def _shared_with(self, started: launch.Launch) -> str:
        uid = started.account.uid
        others = [f"application {name}" for name in self._shop.sharing(self.identity.uid, uid)]
        account = users.host_account(uid) if uid else None
        if account:
            others.append(f"host account {account}")
        return ", ".join(others)

    # The end

    async def _remove(self, removal: Removal) -> None:
        """Stop with grace, remove everything but volumes and their data."""
        layout, unit = self._shop.layout, self.identity.unit
        await self.observe()
        await self._stop_within(removal.grace_seconds)
        await self._shop.systemd.stop(starter.unit(self.identity.uid), seconds=10)
        await asyncio.to_thread(self._shop.remove_unit, unit, units.WANTED_BY)
        await asyncio.to_thread(_remove_tree, layout.units / f"{unit}.d")
        for revision in {r.root: r for r in (self.record.current, self.record.previous) if r is not None}.values():
            await self._discard(revision, keep=())
        await asyncio.to_thread(self._remove_run_state)
        await self._shop.reloader.reload()
        await self._shop.systemd.reset_failed(unit)
        await asyncio.to_thread(_remove_tree, self._directory)
        self.removed = True
        self._tell(
            "Normal", "Removed", f"nothing of {self.identity.namespace}/{self.identity.name} is left on the node"
        )

    async def _stop_within(self, grace: int | None) -> None:
        stopping = asyncio.ensure_future(self._shop.systemd.stop(self.identity.unit))
        try:
            done, _ = await asyncio.wait({stopping}, timeout=grace)
            if not done:
                with contextlib.suppress(AgentError):
                    await self._shop.systemd.kill(self.identity.unit, 9)
            await stopping
        except AgentError as error:
            if error.reason != "UnitGone":
                raise
        finally:
            stopping.cancel()

    def _remove_run_state(self) -> None:
        layout, uid = self._shop.layout, self.identity.uid
        directory = layout.sub_paths(uid)
        if directory.exists():
            for mountpoint in directory.iterdir():
                while os.path.ismount(mountpoint):
                    _unmount(mountpoint)
                mountpoint.rmdir()
            directory.rmdir()
        _remove_tree(layout.open_secrets(uid))
        output.forget(layout, uid)


async def _held_ports(spec: ApplicationSpec) -> list[ports.Listener]:
    wanted = [(port.port, port.protocol) for port in spec.ports]
    return await asyncio.to_thread(ports.listeners, wanted) if wanted else []


async def _ports_free(spec: ApplicationSpec) -> None:
    while await _held_ports(spec):  # nothing announces that a socket was closed  # noqa: ASYNC110
        await asyncio.sleep(_PORT_SECONDS)


def _spec(revision: Revision) -> ApplicationSpec:
    return ApplicationSpec.model_validate(revision.spec)


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


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def _remove_tree(directory: Path) -> None:
    """Remove what the agent made itself. An empty mountpoint that is still mounted is left, never emptied."""
    if os.path.ismount(directory):
        raise AgentError("StillMounted", f"{directory} is still mounted; unmount it")
    shutil.rmtree(directory, ignore_errors=True)


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True, timeout=30)
