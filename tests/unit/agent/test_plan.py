"""What is to be done next, from what is wanted and what is seen."""

from dataclasses import replace

import pytest

from agent.launch import Launch
from agent.plan import Seen, Step, Wanted, next_step
from agent.record import Record, Revision
from agent.systemd import UnitState
from agent.users import Account

LAUNCH = Launch("sha256:1", "/x", ("x",), (), (), Account(0, 0), "/", "hardened", (), False, ())
CURRENT = Revision(2, {"image": "x"}, "x", "sha256:1", ("l",), LAUNCH, 1)
WANTED = Wanted(2, "Always", 600)
RUNNING = UnitState("u", active="active")
STOPPED = UnitState("u", active="inactive")


def seen(unit: UnitState = RUNNING, *, record: Record | None = None, **changes: object) -> Seen:
    base = Seen(record or Record("n", "a", "u", current=CURRENT), unit, False, False, True, True, True, False, 0, 0)
    return replace(base, **changes)  # type: ignore[arg-type]


def rolling_out() -> Record:
    return Record("n", "a", "u", current=CURRENT, previous=replace(CURRENT, generation=1))


@pytest.mark.parametrize(
    ("wanted", "what", "step"),
    [
        (WANTED, seen(), Step.IDLE),
        (WANTED, seen(record=Record("n", "a", "u")), Step.PREPARE),
        (replace(WANTED, generation=3), seen(), Step.PREPARE),
        (replace(WANTED, generation=3), seen(record=Record("n", "a", "u", CURRENT, failed_generation=3)), Step.IDLE),
        (WANTED, seen(files_right=False), Step.WRITE),
        (WANTED, seen(runs_edited=True), Step.RESTART),
        (WANTED, seen(mounted=False), Step.MOUNT),
        (WANTED, seen(STOPPED, mounted=False), Step.START),
        (WANTED, seen(STOPPED), Step.START),
        (WANTED, seen(replace(STOPPED, job=7)), Step.IDLE),
        (WANTED, seen(STOPPED, starting=True), Step.IDLE),
        (WANTED, seen(replace(STOPPED, active="activating")), Step.IDLE),
        (WANTED, seen(STOPPED, finished=True), Step.IDLE),
        (WANTED, seen(record=rolling_out()), Step.SETTLE),
        (WANTED, seen(record=rolling_out(), ready=False), Step.IDLE),
        (WANTED, seen(record=rolling_out(), ready=False, rollout_age=600), Step.ROLL_BACK),
        (replace(WANTED, restart_policy="Never"), seen(record=rolling_out(), ready=False, rollout_age=600), Step.IDLE),
        (replace(WANTED, active_deadline=5), seen(active=5), Step.STOP_OVERDUE),
        (replace(WANTED, active_deadline=5), seen(STOPPED, active=5, finished=True), Step.IDLE),
    ],
)  # fmt: skip
def test_the_next_step(wanted: Wanted, what: Seen, step: Step) -> None:
    assert next_step(wanted, what) is step
