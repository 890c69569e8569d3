"""Looks at one application on the node and tells what is new: its status, and the steps of its life as Events."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from agent import exits, starter, status
from agent.errors import AgentError
from agent.images.pull import PullProgress
from agent.oom import MemoryWatch
from agent.plan import Seen
from agent.record import Record
from agent.systemd import UnitState
from agent.units import Identity
from agent.workshop import Workshop
from horchestra.kinds.application import ApplicationSpec, ApplicationStatus

_PULL_REPORT_SECONDS = 2.0
_COUNTED_AFTER = 3_000_000
"""µs after which the oneshot before a start has surely counted it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What the keeper knows that systemd does not."""

    spec: ApplicationSpec
    generation: int
    error: AgentError | None = None
    terminating: bool = False
    notes: dict[str, tuple[str, str]] = field(default_factory=dict)


class Sight:
    """`frame()` is asked at each look."""

    def __init__(self, shop: Workshop, identity: Identity, known: Record, frame: Callable[[], Frame]) -> None:
        self._shop = shop
        self._identity = identity
        self._record = known
        self._frame = frame
        self._directory = shop.layout.app(identity.uid)
        self.status = ApplicationStatus()
        self.unit = UnitState(identity.unit)
        self._starting = UnitState(starter.unit(identity.uid))
        self._looking = asyncio.Lock()
        self._looked = False
        self._memory: MemoryWatch | None = None
        self._out_of_memory = ""
        self._pulling: PullProgress | None = None
        self._next_progress = 0.0
        self._told_until = 0

    async def look(self) -> None:
        """Ask systemd and read the counters; report when the status is another."""
        async with self._looking:
            with contextlib.suppress(AgentError):
                before, self.unit = self.unit, await self._shop.systemd.state(self._identity.unit)
                self._starting = await self._shop.systemd.state_in_memory(starter.unit(self._identity.uid))
                self._watch_memory(before)
                if self._looked:
                    self._tell_changes(before, self.unit)
                self._looked = True
            self.publish()

    def publish(self) -> None:
        now = status.compute(self._observation())
        if now != self.status:
            self.status = now
            self._shop.changed(self._identity.uid)

    def tell(self, type: str, reason: str, message: str) -> None:
        """An Event about the application."""
        self._shop.tell(self._identity.namespace, self._identity.name, self._identity.uid, type, reason, message)

    def pulling(self, progress: PullProgress | None) -> None:
        """How far the pull is; None: there is none. The status follows at most every two seconds."""
        began = progress is not None and self._pulling is None
        self._pulling = progress
        now = time.monotonic()
        if progress is None or began or now >= self._next_progress:
            self._next_progress = now + _PULL_REPORT_SECONDS
            self.publish()

    def seen(self, *, files_right: bool, runs_edited: bool) -> Seen:
        """What the plan is made from."""
        frame, uptime = self._frame(), time.monotonic_ns() // 1000
        ran = (uptime - self.unit.started_mono) / 1e6 if self.unit.running else 0.0
        current, rollout = self._record.current, self._record.rollout
        age = 0.0
        if rollout is not None and rollout.boot == self._shop.boot:
            age = time.clock_gettime(time.CLOCK_BOOTTIME) - rollout.began
        return Seen(
            record=self._record,
            unit=self.unit,
            starting=self._starting.active == "activating",
            finished=self.finished,
            ready=status.ready(self.unit, frame.spec, uptime),
            files_right=files_right,
            mounted=current is None or os.path.ismount(self._shop.layout.root(current.root)),
            runs_edited=runs_edited,
            rollout_age=age,
            active=starter.read_starts(self._directory).active + ran,
        )

    @property
    def counting(self) -> bool:
        """The oneshot began so lately that its counters may not be written yet; nobody tells when they are."""
        began = self._starting.started_mono
        return self._starting.active == "activating" and time.monotonic_ns() // 1000 - began < _COUNTED_AFTER

    @property
    def finished(self) -> bool:
        """A job that has ended for good."""
        return starter.read_finished(self._directory) is not None

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()

    def _observation(self) -> status.Observation:
        frame, starts = self._frame(), starter.read_starts(self._directory)
        last = starts.previous if self.unit.running else self.unit.invocation
        return status.Observation(
            record=self._record,
            spec=frame.spec,
            generation=frame.generation,
            unit=self.unit,
            starting=self._starting,
            starts=starts,
            finished=starter.read_finished(self._directory),
            error=frame.error,
            pulling=self._pulling,
            notes=frame.notes,
            terminating=frame.terminating,
            node=self._shop.node,
            addresses=self._shop.addresses,
            now=time.time_ns() // 1000,
            uptime=time.monotonic_ns() // 1000,
            out_of_memory=bool(last) and last == self._out_of_memory,
        )

    def _tell_changes(self, before: UnitState, after: UnitState) -> None:
        starts = starter.read_starts(self._directory)
        if before.running and after.running and after.restarts > before.restarts:
            # It was back before anybody looked; systemd has forgotten the end, the oneshot has noted it.
            text = f"the process {exits.sentence(starts.code, starts.status)}"
            good = (starts.code, starts.status) == (exits.EXITED, 0)
            self.tell("Normal" if good else "Warning", "Exited" if starts.code == exits.EXITED else "Killed", text)
        if after.running and not (before.running and after.invocation == before.invocation):
            self.tell("Normal", "Started", f"started {self._identity.unit} (pid {after.main_pid})")
        if after.exited_at > before.exited_at > 0 or (after.exited_at and not before.exited_at and before.running):
            text = f"the process ended: {after.result}, status {after.exit_status}"
            type = "Normal" if after.result == "success" else "Warning"
            self.tell(type, "Killed" if after.exit_code > 1 else "Exited", text)
        if starts.until > self._told_until:
            self._told_until = starts.until
            self.tell("Warning", "BackOff", f"the process keeps ending; it starts again in {starts.delay} s")

    def _watch_memory(self, before: UnitState) -> None:
        """One watch for each process: its control group is made anew at each start."""
        if not self.unit.running or (self._memory and before.running and before.invocation == self.unit.invocation):
            return
        self.close()
        invocation = self.unit.invocation
        self._memory = MemoryWatch(self.unit.control_group, lambda: self._ran_out_of_memory(invocation))

    def _ran_out_of_memory(self, invocation: str) -> None:
        self._out_of_memory = invocation
        self.publish()
