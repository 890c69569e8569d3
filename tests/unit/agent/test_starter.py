"""The script before each start, run by a real sh; systemctl answers and sleep passes as the test says."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent import starter
from agent.layout import Layout


@dataclass
class Machine:
    layout: Layout
    tools: Path

    @property
    def app(self) -> Path:
        return self.layout.app("u")

    def rules(self, policy: str = "Always", retries: int = -1, deadline: int = 0) -> None:
        self.app.mkdir(parents=True, exist_ok=True)
        rules = starter.StartRules("horchestra-app-x.service", policy, retries, deadline)
        (self.app / "start.conf").write_bytes(rules.text())

    def start(
        self, restarts: int = 0, code: int = 1, status: int = 1, ran: float = 1, result: str = "exit-code"
    ) -> int:
        """What systemd tells of the last process; returns the script's exit code. Sleeping is skipped and noted."""
        answer = (
            f"NRestarts={restarts}\nResult={result}\nInvocationID=i{restarts}\nExecMainCode={code}\n"
            f"ExecMainStatus={status}\nExecMainStartTimestampMonotonic=1000000\n"
            f"ExecMainExitTimestampMonotonic={int(1e6 + ran * 1e6)}\n"
        )
        self._tool("systemctl", f"cat <<'END'\n{answer}END\n")
        self._tool("sleep", f'echo "$1" >>{self.tools}/slept')
        self._tool("timeout", "exit 0")
        environment = {**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}"}
        return subprocess.run(
            ["sh", str(self.layout.starter), "start", "u"], env=environment, capture_output=True, timeout=20
        ).returncode

    def slept(self) -> list[int]:
        path = self.tools / "slept"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def _tool(self, name: str, text: str) -> None:
        path = self.tools / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    layout = Layout(tmp_path / "state", tmp_path / "run", tmp_path / "units")
    starter.install(layout)
    (tmp_path / "tools").mkdir()
    made = Machine(layout, tmp_path / "tools")
    made.rules()
    return made


def test_the_first_restart_is_at_once_then_the_wait_doubles_to_five_minutes(machine: Machine) -> None:
    machine.start()
    for restarts in range(1, 10):
        assert machine.start(restarts) == 0
    assert machine.slept() == [10, 20, 40, 80, 160, 300, 300, 300]
    assert starter.read_starts(machine.app).total == 9


def test_a_long_run_starts_the_count_anew(machine: Machine) -> None:
    machine.start()
    machine.start(1)
    machine.start(2)
    machine.start(3, ran=601)
    machine.start(4)
    assert machine.slept() == [10, 10]


def test_a_start_by_hand_is_no_crash(machine: Machine) -> None:
    machine.start()
    machine.start(1)
    machine.start(1)  # systemctl restart: NRestarts did not grow
    assert machine.slept() == []
    machine.start(1)  # and one crash after it
    assert starter.read_starts(machine.app).total == 2


def test_a_reboot_is_one_restart_without_a_wait(machine: Machine) -> None:
    machine.start()
    machine.start(1)
    path = machine.app / "starts"
    path.write_text(path.read_text().replace("boot=", "boot=another-"))
    machine.start(0)
    starts = starter.read_starts(machine.app)
    assert (starts.total, starts.streak) == (2, 0)


@pytest.mark.parametrize(
    ("policy", "retries", "ends", "finished"),
    [
        ("Always", -1, [(1, 0)], None),
        ("OnFailure", -1, [(1, 0)], ("Succeeded", "Completed")),
        ("Never", 0, [(1, 0)], ("Succeeded", "Completed")),
        ("Never", 0, [(1, 3)], ("Failed", "BackoffLimitExceeded")),
        ("Never", 0, [(2, 9)], ("Failed", "BackoffLimitExceeded")),
        ("OnFailure", 2, [(1, 3)] * 2, None),
        ("OnFailure", 2, [(1, 3)] * 3, ("Failed", "BackoffLimitExceeded")),
    ],
)
def test_jobs_end_as_their_policy_says(
    machine: Machine, policy: str, retries: int, ends: list[tuple[int, int]], finished: tuple[str, str] | None
) -> None:
    machine.rules(policy, retries)
    machine.start()
    last = [machine.start(n, code=code, status=status) for n, (code, status) in enumerate(ends, 1)][-1]
    found = starter.read_finished(machine.app)
    assert (found and (found.phase, found.reason)) == finished
    assert (last == 0) == (finished is None)
    if finished:
        assert machine.start(9) == 0  # the unit's own condition keeps it down
        assert starter.read_starts(machine.app).total == len(ends) - 1


def test_a_deadline_counts_all_runs(machine: Machine) -> None:
    machine.rules("OnFailure", -1, deadline=10)
    machine.start()
    assert machine.start(1, ran=6) == 0
    assert machine.start(2, ran=6) == 1
    found = starter.read_finished(machine.app)
    assert found is not None
    assert found.reason == "DeadlineExceeded"


def test_a_new_version_forgets_the_wait_and_the_end_but_not_the_count(machine: Machine) -> None:
    machine.rules("Never", 0)
    machine.start()
    machine.start(1)
    starter.forget_backoff(machine.app, job_too=True)
    assert starter.read_finished(machine.app) is None
    starts = starter.read_starts(machine.app)
    assert (starts.streak, starts.failures) == (0, 0)


def test_the_script_is_plain_posix_shell(machine: Machine) -> None:
    assert subprocess.run(["sh", "-n", str(machine.layout.starter)], capture_output=True).returncode == 0
