"""Faults of the agent: it is no part of what runs, and finds everything right when it returns."""

from collections.abc import Iterator

import pytest

from tests.e2e.machine import Machine, reports
from tests.e2e.site import Site, Space, secret
from tests.e2e.waiting import until

pytestmark = pytest.mark.node


@pytest.fixture
def running(space: Space, machine: Machine) -> Iterator[Space]:
    """Applications of several kinds; each process must be the same at the end."""
    space.kubectl.apply(secret("db", word="kept"))
    env = [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "word"}}}]
    space.run("plain", "lab/named-user:1")
    space.run("limited", resources={"limits": {"memory": "64Mi", "cpu": "100m"}})
    space.run("secret", env=env)
    for name in ("plain", "limited", "secret"):
        space.phase(name, "Running")
    before = machine.invocations()
    yield space
    reports(machine, space.site.controller)
    assert machine.invocations() == before


def test_a_restarted_agent_restarts_nothing(running: Space, machine: Machine) -> None:
    machine.restart_agent()
    _heard(running, machine)


def test_a_killed_agent_is_back_and_restarts_nothing(running: Space, machine: Machine) -> None:
    pid = machine.show("horchestra-agent.service", "MainPID")
    machine.kill_agent()
    until(lambda: machine.show("horchestra-agent.service", "MainPID", "ActiveState") not in (
        [*pid, "active"], ["0", "active"]) and _active(machine), "another agent", 10)  # fmt: skip
    _heard(running, machine)


def test_an_agent_killed_in_the_middle_of_a_start_finishes_it_when_it_is_back(space: Space, machine: Machine) -> None:
    for number in range(4):
        space.run(f"web-{number}", "lab/named-user:1")
    machine.kill_agent()
    for number in range(4):
        space.phase(f"web-{number}", "Running", 30)


def test_an_upgraded_agent_with_another_rendering_rewrites_units_and_restarts_nothing(
    running: Space, machine: Machine
) -> None:
    """The node runs a copy of the source; the new version writes another comment and another order of settings."""
    source = machine.source / "agent" / "units.py"
    before = source.read_text()
    after = before.replace("Made by the Horchestra agent", "Written by the next Horchestra agent")
    assert after != before
    path = machine.node.path(f"/etc/systemd/system/{running.unit('plain')}")
    source.write_text(after)
    try:
        machine.restart_agent()
        until(lambda: "next Horchestra agent" in path.read_text(), "the unit as the new version writes it", 20,
              machine.agent_log)  # fmt: skip
        until(lambda: machine.show(running.unit("plain"), "NeedDaemonReload") == ["no"], "systemd has read it", 5)
        _heard(running, machine)
    finally:
        source.write_text(before)
        machine.restart_agent()
    until(lambda: "next Horchestra agent" not in path.read_text(), "the unit as it was", 20, machine.agent_log)


def test_what_was_deleted_while_the_agent_was_away_is_removed_and_the_rest_is_kept(
    running: Space, machine: Machine
) -> None:
    running.started("doomed")
    machine.stop_agent()
    running.kubectl("delete", "app", "doomed", "--wait=false")
    assert machine.runs("doomed", running.namespace)
    machine.start_agent()
    running.gone("doomed")
    assert machine.pid("doomed", running.namespace) == 0


def test_status_on_the_node_says_since_when_it_is_connected_or_alone(site: Site, machine: Machine) -> None:
    said = machine.node.exec("python3", "-m", "agent", "status").stdout
    assert f"connected to {site.controller.agents} since" in said
    machine.stop_agent()
    done = machine.node.exec("python3", "-m", "agent", "status", check=False)
    assert done.returncode == 1
    assert "not running" in done.stdout
    machine.start_agent()
    reports(machine, site.controller)


def _active(machine: Machine) -> bool:
    return machine.show("horchestra-agent.service", "ActiveState") == ["active"]


def _heard(space: Space, machine: Machine) -> None:
    """Something that only the agent of now can do has been done."""
    space.run("probe", "lab/job-succeeds:1", restartPolicy="Never")
    space.phase("probe", "Succeeded", 30)
    space.kubectl("delete", "app", "probe")
