"""What is observed, as the ApplicationStatus that people and controllers read. Values in, a value out."""

import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from agent import exits
from agent.errors import AgentError
from agent.images.pull import PullProgress
from agent.record import Record
from agent.starter import Finished, Starts
from agent.systemd import UnitState
from horchestra.apimachinery.meta import Condition
from horchestra.kinds.application import ApplicationSpec, ApplicationStatus
from horchestra.kinds.application import PullProgress as PullStatus

_START_UNIT_FAILURES = {
    70: ("SecretMountUnsafe", "the node's /run is not in memory, so secrets are not opened there; mount a tmpfs"),
    71: ("SecretsUnreadable", "the sealed secrets on the node cannot be opened; apply the application again"),
    72: ("InvalidSubPath", "a subPath leads out of its volume through a symlink; remove the symlink"),
}


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything a status is made of. `now`: µs since the epoch; `uptime`: µs on the monotonic clock."""

    record: Record
    spec: ApplicationSpec
    generation: int
    unit: UnitState
    starting: UnitState
    """The oneshot before the start (agent.starter)."""
    starts: Starts
    finished: Finished | None
    error: AgentError | None
    pulling: PullProgress | None
    notes: dict[str, tuple[str, str]]
    terminating: bool
    node: str
    addresses: tuple[str, ...]
    now: int
    uptime: int
    out_of_memory: bool = False


def ready(unit: UnitState, spec: ApplicationSpec, uptime: int) -> bool:
    """Without a probe: up for minReadySeconds without a restart. `uptime` in µs."""
    return unit.running and uptime - unit.started_mono >= spec.minReadySeconds * 1_000_000


def compute(seen: Observation) -> ApplicationStatus:
    """The status; condition times are kept in (and written to) the record's transitions."""
    phase, reason, message = _phase(seen)
    code = exits.number(*_last_exit(seen))
    current = seen.record.current
    return ApplicationStatus(
        phase=phase,
        reason=reason,
        message=message,
        conditions=_conditions(seen, reason, message),
        observedGeneration=seen.generation,
        node=seen.node,
        addresses=list(seen.addresses),
        restartCount=seen.starts.total,
        imageDigest=current.digest if current else "",
        exitCode=code,
        pull=_pull(seen.pulling),
        startedAt=_time(seen.unit.started_at),
        finishedAt=_time(seen.unit.exited_at),
        currentRevision=current.generation if current else None,
        failedRevision=seen.record.failed_generation or None,
    )


def _phase(seen: Observation) -> tuple[Any, str, str]:
    if seen.terminating:
        return "Terminating", "Terminating", seen.error.message if seen.error else ""
    if seen.finished is not None:
        return _finished(seen.finished, seen)
    if seen.unit.running:
        if seen.error is not None and not _is_waiting(seen.error):
            return "Running", seen.error.reason, f"the running version stays: {seen.error.message}"
        return "Running", "", ""
    if seen.pulling is not None:
        return "Pulling", "Pulling", seen.pulling.waiting
    crash = _crash(seen)
    if crash is not None:
        return crash
    if seen.error is not None:
        return "Pending", seen.error.reason, seen.error.message
    if seen.record.current is None:
        return "Pending", "Preparing", ""
    return "Starting", "Starting", ""


def _is_waiting(error: AgentError) -> bool:
    return error.reason == "Stopping"


def _finished(end: Finished, seen: Observation) -> tuple[Any, str, str]:
    if end.phase == "Succeeded":
        return "Succeeded", end.reason, ""
    what = _explain(end.code, end.status, seen)
    messages = {
        "BackoffLimitExceeded": f"{what}, and all retries of backoffLimit are used; change spec to run it again",
        "DeadlineExceeded": "it ran longer than activeDeadlineSeconds and was stopped; change spec to run it again",
    }
    return "Failed", end.reason, messages.get(end.reason, what)


def _crash(seen: Observation) -> tuple[Any, str, str] | None:
    """A process that ended by itself and is about to be started again, or a start that failed."""
    failed = seen.starting.exit_status if seen.starting.result == "exit-code" else 0
    if failed in _START_UNIT_FAILURES:
        return "Starting", *_START_UNIT_FAILURES[failed]
    code, status = _last_exit(seen)
    if not code or not seen.starts.streak:
        return None
    what = _explain(code, status, seen)
    left = seen.starts.until - seen.uptime // 1_000_000
    if seen.starts.streak < 2:
        return "Starting", "Restarting", what
    when = f"starts again in {left} s" if left > 0 else "starts again now"
    return "Starting", "CrashLoopBackOff", f"{what}; {when} (restart {seen.starts.total})"


def _last_exit(seen: Observation) -> tuple[int, int]:
    """(code, status) of the last process: systemd's word in this boot, the counter's from an earlier one."""
    if seen.unit.exit_code:
        return seen.unit.exit_code, seen.unit.exit_status
    return seen.starts.code, seen.starts.status


def _explain(code: int, status: int, seen: Observation) -> str:
    limit = seen.spec.resources.limits.get("memory")
    if seen.out_of_memory or seen.unit.result == "oom-kill":
        much = f"its memory limit of {limit}" if limit is not None else "the node's memory"
        return f"the process was killed because it used more than {much} (OOMKilled); raise resources.limits.memory"
    ran = max(seen.unit.exited_at - seen.unit.started_at, 0)
    setup = exits.setup_failure(code, status, ran)
    if setup is not None:
        return f"the process could not be started: {setup} (exit code {status})"
    if seen.unit.result == "timeout":
        return "the process did not end in time and was killed"
    if code == exits.EXITED and status == 0:
        return "the process ended (exit code 0)"
    if (code, status) == (exits.KILLED, signal.SIGKILL) and limit is not None:
        # Under cgroup v1 systemd cannot tell, and what dies within milliseconds dies before anybody watches.
        return f"the process was killed by SIGKILL, probably for using more than its memory limit of {limit}"
    return f"the process {exits.sentence(code, status)}; see kubectl logs --previous"


def _conditions(seen: Observation, reason: str, message: str) -> list[Condition]:
    record, unit = seen.record, seen.unit
    prepared = record.current is not None
    failed = seen.error
    found: dict[str, tuple[str, str, str]] = {"Scheduled": ("True", "Placed", "")}
    image_failed = failed is not None and not prepared and failed.reason not in _LATER
    found["ImageReady"] = (
        ("True", "Pulled", "")
        if prepared
        else ("False", failed.reason, failed.message)
        if image_failed and failed is not None
        else ("False", "Pulling" if seen.pulling else "Preparing", "")
    )
    volume_failed = failed is not None and failed.reason.startswith(("Volume", "InvalidSubPath", "Foreign"))
    found["VolumesReady"] = (
        ("False", failed.reason, failed.message)
        if volume_failed and failed is not None
        else ("True", "Prepared", "")
        if prepared
        else ("False", "Waiting", "")
    )
    started = unit.running or seen.finished is not None
    found["Started"] = ("True", "Started", "") if started else ("False", reason or "Waiting", message)
    if ready(unit, seen.spec, seen.uptime):
        found["Ready"] = ("True", "Up", "")
    elif unit.running:
        found["Ready"] = ("False", "NotYetUpLongEnough", f"Ready after {seen.spec.minReadySeconds} s without a restart")
    else:
        found["Ready"] = ("False", reason or "NotRunning", message)
    if record.failed_generation:
        found["RolledBack"] = ("True", "ProgressDeadlineExceeded", record.failed_message)
    found.update({kind: ("True", *note) for kind, note in seen.notes.items()})
    return [_condition(seen, kind, *value) for kind, value in found.items()]


_LATER = ("PortConflict", "VolumeNotFound", "SecretNotFound", "ConfigMapNotFound")


def _condition(seen: Observation, kind: str, status: str, reason: str, message: str) -> Condition:
    known = seen.record.transitions.get(kind)
    if known is None or known[0] != status:
        known = (status, _time(seen.now) or "")
        seen.record.transitions[kind] = known
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        lastTransitionTime=known[1],
        observedGeneration=seen.generation,
    )


def _pull(progress: PullProgress | None) -> PullStatus | None:
    if progress is None:
        return None
    return PullStatus(
        layersDone=progress.layers_done,
        layersTotal=progress.layers_total,
        bytesDone=progress.bytes_done,
        bytesTotal=progress.bytes_total,
    )


def _time(microseconds: int) -> str | None:
    if not microseconds:
        return None
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
