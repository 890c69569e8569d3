"""A node that cannot be heard is Unknown within ten seconds, goes on working, and comes back without a restart."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.machine import Machine, condition, ready
from tests.e2e.site import Site, Space
from tests.e2e.waiting import throughout, until

pytestmark = pytest.mark.node

FAULTS: dict[str, Callable[[Machine], None]] = {
    "cable-pulled": lambda machine: machine.node.cut(),
    "packets-lost-in-silence": lambda machine: machine.node.silent_drop(),
}


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_cut_node_and_its_applications_are_unknown_until_it_is_back(site: Site, space: Space, fault: str) -> None:
    machine = site.machines["sav-02"]
    space.run("here")
    space.started("there", node="sav-02")
    space.phase("here", "Running")
    before, agent = machine.invocations(), machine.show("horchestra-agent.service", "MainPID")
    began = time.monotonic()
    FAULTS[fault](machine)
    try:
        until(lambda: ready(site.controller, "sav-02") == "Unknown", "the node Unknown", 10)
        until(lambda: space.status("there")["phase"] == "Unknown", "its application Unknown", 1)
        assert time.monotonic() - began < 11
        assert space.status("there")["message"]
        assert space.status("here")["phase"] == "Running"
        assert ready(site.controller, "sav-01") == "True"
        assert space.kubectl("get", "node", "sav-02").splitlines()[1].split()[1] == "Unknown"
        until(lambda: "alone" in machine.node.exec("python3", "-m", "agent", "status", check=False).stdout,
              "the agent knows that it is alone", 10, machine.agent_log)  # fmt: skip
        assert machine.invocations() == before
    finally:
        machine.node.heal()
    until(lambda: ready(site.controller, "sav-02") == "True", "the node is back", 40, machine.agent_log)
    space.phase("there", "Running")
    assert machine.invocations() == before
    assert machine.show("horchestra-agent.service", "MainPID") == agent


def test_a_short_interruption_is_not_noticed(site: Site, space: Space) -> None:
    machine = site.machines["sav-02"]
    space.started("there", node="sav-02")
    since = condition(site.controller.get("node", "sav-02"), "Ready")["lastTransitionTime"]
    machine.node.silent_drop()
    time.sleep(2)
    machine.node.heal()
    throughout(lambda: space.status("there")["phase"] == "Running", "Running", 8)
    assert condition(site.controller.get("node", "sav-02"), "Ready")["lastTransitionTime"] == since


def test_what_changes_on_a_cut_node_is_told_when_it_is_back(site: Site, space: Space) -> None:
    machine = site.machines["sav-02"]
    space.started("there", node="sav-02")
    machine.node.cut()
    try:
        machine.node.exec("kill", "-KILL", str(machine.pid("there", space.namespace)))
        until(lambda: ready(site.controller, "sav-02") == "Unknown", "the node Unknown", 10)
        space.kubectl("patch", "app", "there", "--type=merge", "-p", '{"spec": {"env": {"COLOUR": "blue"}}}')
    finally:
        machine.node.heal()
    until(lambda: ready(site.controller, "sav-02") == "True", "the node is back", 40, machine.agent_log)
    space.phase("there", "Running")
    assert machine.environ("there", space.namespace)["COLOUR"] == "blue"
    assert space.status("there")["restartCount"] == 1


@pytest.mark.long
def test_a_node_that_comes_and_goes_leaks_nothing(site: Site, space: Space) -> None:
    machine = site.machines["sav-02"]
    space.started("there", node="sav-02")
    before = machine.invocations()
    open_files = _open_files(site)
    for _ in range(10):
        machine.restart_agent()
        until(lambda: ready(site.controller, "sav-02") == "True", "the node is back", 40)
    until(lambda: _open_files(site) <= open_files + 5, "sockets are closed", 20, lambda: _open_files(site))
    assert machine.invocations() == before


def _open_files(site: Site) -> int:
    return sum(1 for _ in Path(f"/proc/{site.controller.pid}/fd").iterdir())
