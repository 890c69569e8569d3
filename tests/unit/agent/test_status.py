"""Observations as statuses that tell the truth and what to do."""

from dataclasses import replace
from typing import Any

import pytest

from agent import status
from agent.errors import AgentError
from agent.images.pull import PullProgress
from agent.launch import Launch
from agent.record import Record, Revision
from agent.starter import Finished, Starts
from agent.systemd import UnitState
from agent.users import Account
from horchestra.kinds.application import ApplicationSpec

SECOND = 1_000_000
LAUNCH = Launch("d", "/x", ("x",), (), (), Account(0, 0), "/", "hardened", (), False, ())
CURRENT = Revision(1, {"image": "x"}, "x", "sha256:1", ("l",), LAUNCH, 1)
RUNNING = UnitState("u", active="active", started_mono=50 * SECOND, started_at=1_700_000_000 * SECOND)
ENDED = UnitState("u", active="inactive", job=3, exit_code=1, exit_status=1, result="exit-code",
                  started_at=1_700_000_000 * SECOND, exited_at=1_700_000_005 * SECOND)  # fmt: skip


def observed(unit: UnitState = RUNNING, **changes: Any) -> status.Observation:
    base = status.Observation(
        record=Record("n", "a", "u", current=CURRENT), spec=ApplicationSpec(image="x"), generation=1, unit=unit,
        starting=UnitState("s"), starts=Starts(), finished=None, error=None, pulling=None, notes={}, terminating=False,
        node="n1", addresses=("10.0.0.1",), now=1_700_000_100 * SECOND, uptime=100 * SECOND,
    )  # fmt: skip
    return replace(base, **changes)


def conditions(seen: status.Observation) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in status.compute(seen).conditions}


def test_a_process_is_ready_when_it_was_up_long_enough() -> None:
    assert status.compute(observed()).phase == "Running"
    assert conditions(observed())["Ready"] == ("True", "Up")
    assert conditions(observed(uptime=55 * SECOND))["Ready"] == ("False", "NotYetUpLongEnough")


def test_a_crash_loop_says_why_and_when_it_goes_on() -> None:
    told = status.compute(observed(ENDED, starts=Starts(total=4, streak=3, delay=20, until=112)))
    assert (told.phase, told.reason, told.exitCode, told.restartCount) == ("Starting", "CrashLoopBackOff", 1, 4)
    assert "exited with code 1" in told.message
    assert "starts again in 12 s" in told.message


def test_the_first_restart_is_no_loop() -> None:
    assert status.compute(observed(ENDED, starts=Starts(total=1, streak=1))).reason == "Restarting"


@pytest.mark.parametrize(
    ("unit", "changes", "words"),
    [
        (replace(ENDED, exit_status=203, exited_at=ENDED.started_at), {}, "could not be executed"),
        (replace(ENDED, exit_code=2, exit_status=11), {}, "killed by SIGSEGV"),
        (replace(ENDED, result="oom-kill"), {}, "OOMKilled"),
        (replace(ENDED, exit_code=2, exit_status=9), {"out_of_memory": True}, "OOMKilled"),
        (
            replace(ENDED, exit_code=2, exit_status=9),
            {"spec": ApplicationSpec(image="x", resources={"limits": {"memory": "16Mi"}})},  # type: ignore[arg-type]
            "probably for using more than its memory limit of 16Mi",
        ),
    ],
)
def test_ends_are_explained(unit: UnitState, changes: dict[str, Any], words: str) -> None:
    assert words in status.compute(observed(unit, starts=Starts(total=2, streak=2), **changes)).message


def test_an_application_that_exits_with_203_after_a_while_did_so_itself() -> None:
    told = status.compute(observed(replace(ENDED, exit_status=203), starts=Starts(total=2, streak=2)))
    assert "exited with code 203" in told.message


@pytest.mark.parametrize(
    ("finished", "phase", "code"),
    [
        (Finished("Succeeded", "Completed", 1, 0), "Succeeded", 0),
        (Finished("Failed", "BackoffLimitExceeded", 1, 3), "Failed", 3),
    ],
)
def test_a_finished_job_says_how_it_ended_after_a_reboot_too(finished: Finished, phase: str, code: int) -> None:
    rebooted = UnitState("u", load="loaded")
    starts = Starts(code=finished.code, status=finished.status)
    told = status.compute(observed(rebooted, finished=finished, starts=starts))
    assert (told.phase, told.exitCode) == (phase, code)


def test_a_failing_update_leaves_the_running_version_running() -> None:
    told = status.compute(observed(error=AgentError("ImageNotFound", "no such image")))
    assert (told.phase, told.reason) == ("Running", "ImageNotFound")
    assert told.message.startswith("the running version stays")


def test_what_holds_the_first_start_is_pending_with_the_reason() -> None:
    new = Record("n", "a", "u")
    told = status.compute(
        observed(UnitState("u"), record=new, error=AgentError("SecretNotFound", 'secret "db" not found'))
    )
    assert (told.phase, told.reason) == ("Pending", "SecretNotFound")
    pulling = status.compute(observed(UnitState("u"), record=new, pulling=PullProgress(1, 3, 10, 100)))
    assert pulling.phase == "Pulling"
    assert pulling.pull is not None
    assert (pulling.pull.layersDone, pulling.pull.bytesTotal) == (1, 100)


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    seen = observed()
    first = {c.type: c.lastTransitionTime for c in status.compute(seen).conditions}
    later = {c.type: c.lastTransitionTime for c in status.compute(replace(seen, now=seen.now + 60 * SECOND)).conditions}
    assert later == first
    stopped = replace(seen, unit=UnitState("u"), now=seen.now + 90 * SECOND)
    changed = {c.type: c.lastTransitionTime for c in status.compute(stopped).conditions}
    assert changed["Ready"] != first["Ready"]
    assert changed["ImageReady"] == first["ImageReady"]
