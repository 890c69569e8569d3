"""Two agents never run with one state directory, and whoever is refused learns who holds it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import lock, memory
from agent.__main__ import main
from agent.errors import AgentError


@pytest.fixture
def taken(tmp_path: Path) -> Iterator[int]:
    descriptor = lock.take(tmp_path)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(f'node = "n1"\nendpoint = "controller.example:6444"\nstate_dir = "{tmp_path}"\n')
    return path


def reported(state: Path, pid: int) -> None:
    """What the agent `pid` leaves once it is connected."""
    at = "2026-01-01T00:00:00Z"
    memory.save(
        state / "connection.json", memory.Connection(True, at, "Accepted: as n1", pid, "controller.example:6444", "n1")
    )


@pytest.mark.usefixtures("taken")
def test_a_second_agent_is_refused_in_one_sentence_with_the_pid(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(config.parent.iterdir())
    assert main(["run", "--config", str(config)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"AlreadyRunning: an agent with pid {os.getpid()} already runs with {config.parent}: ")
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert sorted(config.parent.iterdir()) == before


def test_a_child_does_not_hold_the_lock_after_the_agent_ended(tmp_path: Path) -> None:
    descriptor = lock.take(tmp_path)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False):
        os.close(descriptor)
        os.close(lock.take(tmp_path))


def test_a_lock_whose_holder_is_gone_is_taken_and_renamed(tmp_path: Path) -> None:
    (tmp_path / lock.NAME).write_text(f"{2**22}   \n")
    assert lock.holder(tmp_path) is None
    descriptor = lock.take(tmp_path)
    assert lock.holder(tmp_path) == os.getpid()
    os.close(descriptor)
    assert lock.holder(tmp_path) is None


def test_a_lock_file_without_a_pid_still_locks(tmp_path: Path, taken: int) -> None:
    os.truncate(taken, 0)
    with pytest.raises(AgentError, match="an agent already runs"):
        lock.take(tmp_path)


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / lock.NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AgentError) as caught:
        lock.take(tmp_path)
    assert caught.value.reason == "StateUnusable"
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.usefixtures("taken")
def test_status_tells_of_the_agent_that_holds_the_lock(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reported(config.parent, os.getpid())
    assert main(["status", "--config", str(config)]) == 0
    assert "agent       connected to controller.example:6444 since 2026-01-01T00:00:00Z" in capsys.readouterr().out


@pytest.mark.usefixtures("taken")
def test_status_does_not_take_the_last_agents_word_for_one_that_starts(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reported(config.parent, os.getppid())
    assert main(["status", "--config", str(config)]) == 1
    assert f"agent       starting, pid {os.getpid()}" in capsys.readouterr().out


def test_status_is_not_deceived_by_another_process_with_the_agents_pid(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.close(lock.take(config.parent))
    reported(config.parent, os.getpid())
    assert main(["status", "--config", str(config)]) == 1
    assert "not running" in capsys.readouterr().out
