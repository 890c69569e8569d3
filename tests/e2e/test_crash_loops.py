"""A process that ends again and again is a crash loop: tried for ever with a growing delay, no one else touched."""

import pytest

from tests.e2e.machine import Machine
from tests.e2e.site import Space
from tests.e2e.waiting import until

pytestmark = pytest.mark.node


def test_a_crash_loop_is_told_with_exit_code_count_and_the_next_start(space: Space, machine: Machine) -> None:
    space.started("neighbour")
    others = machine.invocations()
    space.run("broken", "lab/crashes:1")
    until(lambda: space.status("broken").get("reason") == "CrashLoopBackOff", "CrashLoopBackOff", 10,
          lambda: space.explain("broken"))  # fmt: skip
    status = space.status("broken")
    assert status["exitCode"] == 1
    assert status["restartCount"] >= 1
    assert "starts again in" in status["message"]
    assert space.kubectl("get", "app", "broken").splitlines()[1].split()[2] == "CrashLoopBackOff"
    assert space.kubectl("get", "pod", "broken").splitlines()[1].split()[2] == "CrashLoopBackOff"
    assert {unit: ids for unit, ids in machine.invocations().items() if unit in others} == others


def test_the_first_restart_is_at_once_and_needs_no_agent(space: Space, machine: Machine) -> None:
    space.started("web")
    machine.stop_agent()
    try:
        pid = machine.pid("web", space.namespace)
        machine.node.exec("kill", "-KILL", str(pid))
        until(lambda: machine.pid("web", space.namespace) not in (0, pid), "restarted by systemd", 2)
        machine.node.exec("kill", "-KILL", str(machine.pid("web", space.namespace)))
        until(lambda: machine.show(f"horchestra-start@{_uid(space, 'web')}.service", "ActiveState") == ["activating"],
              "the second restart waits", 2)  # fmt: skip
    finally:
        machine.start_agent()
    until(lambda: space.status("web")["restartCount"] >= 2, "both are counted", 15)
    until(lambda: machine.runs("web", space.namespace), "it runs again after about 10 s", 15)


def test_a_mended_spec_starts_at_once(space: Space) -> None:
    space.run("broken", "lab/crashes:1")
    until(lambda: space.status("broken").get("reason") == "CrashLoopBackOff", "CrashLoopBackOff", 10,
          lambda: space.explain("broken"))  # fmt: skip
    space.kubectl("patch", "app", "broken", "--type=merge", "-p", '{"spec": {"command": ["/bin/sleep", "600"]}}')
    assert space.phase("broken", "Running", 5)["reason"] == ""


def test_a_program_that_does_not_exist_is_told_by_its_name(space: Space) -> None:
    space.run("nothing", command=["/bin/is-not-there"])
    until(lambda: "is-not-there" in space.status("nothing").get("message", ""), "the program's name in the message", 10,
          lambda: space.explain("nothing"))  # fmt: skip
    assert space.status("nothing")["phase"] != "Running"


def test_running_out_of_memory_is_told_with_the_limit(space: Space) -> None:
    eat = "x=x; while :; do x=$x$x$x$x; done"
    space.run("hungry", command=["/bin/sh", "-c", eat], resources={"limits": {"memory": "16Mi"}})
    until(lambda: "memory limit of 16Mi" in space.status("hungry").get("message", ""), "the limit in the message", 15,
          lambda: space.explain("hungry"))  # fmt: skip
    assert space.status("hungry")["exitCode"] == 137


def _uid(space: Space, name: str) -> str:
    found = space.get(name)
    assert found is not None
    return str(found["metadata"]["uid"])
