"""What to do next for one application: a pure rule from what is wanted and what is seen.

Level-driven: it is asked again after each step, and after each change on the node, until it says IDLE.
"""

from dataclasses import dataclass
from enum import StrEnum

from agent.record import Record
from agent.systemd import UnitState


class Step(StrEnum):
    PREPARE = "prepare"
    """The wanted generation is not known here: resolve its image; replace what runs if that is started otherwise."""
    WRITE = "write"
    """Files on the node are not as rendered: write and reload, restart nothing."""
    MOUNT = "mount"
    """The root of a running process is no longer mounted: the process does not notice, its next start would."""
    RESTART = "restart"
    """The process was started from a unit file that somebody had edited."""
    START = "start"
    """It should run and does not, and nothing is about to start it."""
    STOP_OVERDUE = "stop overdue"
    """It has used up activeDeadlineSeconds."""
    ROLL_BACK = "roll back"
    SETTLE = "settle"
    """The new revision is Ready: forget the previous one."""
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the controller wants, or what the node keeps up by itself (`generation` of the record)."""

    generation: int
    restart_policy: str
    progress_deadline: float
    active_deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What is there. Seconds. `files_right`: units, links, rules and skeleton on disk are as rendered."""

    record: Record
    unit: UnitState
    starting: bool
    """The oneshot before the start is at work (a back-off, perhaps)."""
    finished: bool
    ready: bool
    files_right: bool
    mounted: bool
    runs_edited: bool
    rollout_age: float
    active: float
    """Seconds of work so far, over all restarts."""


def next_step(wanted: Wanted, seen: Seen) -> Step:
    record = seen.record
    if record.current is None or _is_new(wanted, record):
        return Step.PREPARE
    if not seen.files_right:
        return Step.WRITE
    if seen.runs_edited and seen.unit.running:
        return Step.RESTART
    if seen.unit.running and not seen.mounted:
        return Step.MOUNT
    if record.previous is not None:
        if seen.ready or seen.finished:
            return Step.SETTLE
        if seen.rollout_age >= wanted.progress_deadline and wanted.restart_policy != "Never":
            return Step.ROLL_BACK
    if seen.finished:
        return Step.IDLE
    if wanted.active_deadline is not None and seen.active >= wanted.active_deadline and seen.unit.running:
        return Step.STOP_OVERDUE
    if seen.unit.stopped and not seen.starting:
        return Step.START
    return Step.IDLE


def _is_new(wanted: Wanted, record: Record) -> bool:
    """A generation that failed once is not tried again; the node goes on with what it went back to."""
    assert record.current is not None
    return wanted.generation not in (record.current.generation, record.failed_generation)
