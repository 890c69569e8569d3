"""Faults of the controller: nothing on any node restarts, and what was changed meanwhile is caught up with."""

import os
import signal
import time
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.kubectl import Kubectl
from tests.e2e.machine import ready
from tests.e2e.site import Site, Space, application
from tests.e2e.waiting import throughout, until
from tests.lab.command import CommandError

pytestmark = pytest.mark.node


@pytest.fixture
def running(site: Site, space: Space) -> Iterator[Space]:
    """Applications on both nodes that must not notice anything; every other one must not either."""
    space.run("one")
    space.run("two", node="sav-02")
    space.phase("one", "Running")
    space.phase("two", "Running")
    before, agents = invocations(site), _agents(site)
    yield space
    _back(site)
    assert invocations(site) == before
    assert _agents(site) == agents


def test_a_killed_controller_is_back_with_all_it_knew(site: Site, running: Space) -> None:
    version = running.kubectl.get("app", "one")["metadata"]["uid"]
    site.controller.kill()
    site.controller.start()
    assert running.kubectl.get("app", "one")["metadata"]["uid"] == version
    assert running.status("one")["phase"] == "Running"
    _back(site)
    assert running.status("two")["phase"] == "Running"


def test_a_restarted_controller_never_shows_what_runs_as_unknown(site: Site, running: Space) -> None:
    """Nodes have 30 s to come back after a start."""
    site.controller.stop()
    site.controller.start()
    throughout(lambda: {running.status(name)["phase"] for name in ("one", "two")} == {"Running"}, "both Running", 4)


def test_what_is_acknowledged_survives_a_kill(site: Site, running: Space) -> None:
    for number in range(5):
        running.kubectl("create", "configmap", f"kept-{number}", "--from-literal=a=b")
    site.controller.kill()
    site.controller.start()
    assert len(running.kubectl.get("configmap")["items"]) == 5


def test_a_controller_that_hangs_is_noticed_and_taken_up_again(site: Site, running: Space) -> None:
    machine = site.machines["sav-01"]
    os.kill(site.controller.pid, signal.SIGSTOP)
    try:
        until(lambda: "alone" in machine.node.exec("python3", "-m", "agent", "status", check=False).stdout,
              "the agent knows that it is alone", 15, machine.agent_log)  # fmt: skip
    finally:
        os.kill(site.controller.pid, signal.SIGCONT)
    _back(site)


@pytest.mark.long
def test_half_a_minute_without_controller_changes_nothing(site: Site, running: Space) -> None:
    site.controller.stop()
    before = invocations(site)
    time.sleep(30)
    assert invocations(site) == before
    site.controller.start()


def test_a_process_that_dies_without_a_controller_is_started_again_and_told_later(site: Site, space: Space) -> None:
    space.started("web")
    machine = site.machines["sav-01"]
    site.controller.stop()
    pid = machine.pid("web", space.namespace)
    machine.node.exec("kill", "-KILL", str(pid))
    until(lambda: machine.pid("web", space.namespace) not in (0, pid), "started again", 3)
    site.controller.start()
    _back(site)
    until(lambda: space.status("web")["restartCount"] == 1, "the restart is told", 10, lambda: space.explain("web"))


def test_what_is_applied_while_the_nodes_are_away_is_done_when_they_return(site: Site, space: Space) -> None:
    space.started("old", node="sav-02")
    machine = site.machines["sav-02"]
    machine.stop_agent()
    space.run("new", node="sav-02")
    space.kubectl("delete", "app", "old", "--wait=false")
    assert machine.runs("old", space.namespace)
    machine.start_agent()
    space.phase("new", "Running")
    space.gone("old")


def test_two_controllers_cannot_share_a_data_directory(site: Site) -> None:
    with pytest.raises(CommandError, match="another controller"):
        site.controller.manage("runcontroller", "--api-bind", "127.0.0.1:0", "--agent-bind", "127.0.0.1:0")


def test_without_a_certificate_nobody_may_do_anything(site: Site, space: Space) -> None:
    config = yaml.safe_load(site.controller.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "made-up"}
    bare = site.controller.data / "bare.kubeconfig"
    bare.write_text(yaml.safe_dump(config))
    done = Kubectl(space.kubectl.binary, bare, space.namespace).run("get", "app")
    assert done.returncode == 1
    assert "Unauthorized" in done.stderr or "must be logged in" in done.stderr


def test_deleting_everything_by_its_objects_is_what_stops_it(site: Site, space: Space) -> None:
    """The counterpart of all others here: a named removal does stop."""
    space.kubectl.apply(application("web", "lab/no-user:1"))
    space.phase("web", "Running")
    space.kubectl("delete", "app", "web")
    assert not site.machines["sav-01"].runs("web", space.namespace)


def invocations(site: Site) -> dict[str, dict[str, tuple[str, str]]]:
    return {name: machine.invocations() for name, machine in site.machines.items()}


def _agents(site: Site) -> dict[str, list[str]]:
    """The agents' processes: a lost controller is no reason for one to end."""
    return {name: machine.show("horchestra-agent.service", "MainPID") for name, machine in site.machines.items()}


def _back(site: Site) -> None:
    for name, machine in site.machines.items():
        until(lambda name=name: ready(site.controller, name) == "True" and _connected(site, name),  # type: ignore[misc]
              f"{name} is connected", 30, machine.agent_log)  # fmt: skip


def _connected(site: Site, name: str) -> bool:
    done = site.machines[name].node.exec("python3", "-m", "agent", "status", check=False)
    return done.returncode == 0
