"""Jobs: run to their end once, tried again as asked, and finished for good."""

from typing import Any

import pytest

from tests.e2e.machine import Machine, ready
from tests.e2e.site import Site, Space
from tests.e2e.waiting import until

pytestmark = pytest.mark.node


def test_a_job_that_succeeds_is_finished(space: Space) -> None:
    space.run("job", "lab/job-succeeds:1", restartPolicy="Never")
    status = space.phase("job", "Succeeded")
    assert (status["exitCode"], status["restartCount"]) == (0, 0)
    assert space.log("job") == "working\ndone\n"
    assert space.kubectl("get", "pod", "job").splitlines()[1].split()[2] == "Completed"


def test_a_job_that_fails_is_failed_with_its_exit_code_and_not_tried_again(space: Space) -> None:
    space.run("job", "lab/job-fails:1", restartPolicy="Never")
    status = space.phase("job", "Failed")
    assert (status["exitCode"], status["restartCount"]) == (3, 0)
    assert "3" in status["message"]
    assert space.log("job") == "working\nfailed\n"


def test_a_job_is_tried_again_as_often_as_its_backoff_limit_says(space: Space) -> None:
    space.run("job", "lab/job-fails:1", restartPolicy="Never", backoffLimit=1)
    status = space.phase("job", "Failed", reason="BackoffLimitExceeded")
    assert (status["exitCode"], status["restartCount"]) == (3, 1)
    assert space.log("job") == "working\nfailed\n" * 2
    assert space.kubectl("logs", "--previous", "job") == "working\nfailed\n"


def test_on_failure_runs_until_it_succeeds(space: Space) -> None:
    once = "[ -e /scratch/seen ] && exit 0; touch /scratch/seen; exit 9"
    name = f"{space.namespace[:50]}-scratch"
    volume = {
        "apiVersion": "orch.ks-tool.dev/v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {"size": "1Mi", "node": "sav-01", "reclaimPolicy": "Delete"},
    }
    space.kubectl.apply(volume)
    mounts = [{"pv": name, "path": "/scratch"}]
    space.run("job", restartPolicy="OnFailure", command=["/bin/sh", "-c", once], volumeMounts=mounts)
    status = space.phase("job", "Succeeded")
    assert (status["exitCode"], status["restartCount"]) == (0, 1)
    space.kubectl("delete", "app", "job")
    space.kubectl("delete", "pv", name)


def test_a_job_that_takes_too_long_is_stopped(space: Space) -> None:
    space.run("job", restartPolicy="Never", activeDeadlineSeconds=2)
    status = space.phase("job", "Failed", reason="DeadlineExceeded")
    assert "activeDeadlineSeconds" in status["message"]


def test_a_finished_job_gives_back_its_port_and_capacity(space: Space) -> None:
    claims: dict[str, Any] = {"ports": [{"port": 7001}], "resources": {"requests": {"memory": "1Mi"}}}
    space.run("job", "lab/job-succeeds:1", restartPolicy="Never", **claims)
    space.phase("job", "Succeeded")
    space.started("service", **claims)


def test_a_changed_spec_runs_a_finished_job_again(space: Space) -> None:
    space.run("job", "lab/job-succeeds:1", restartPolicy="Never")
    space.phase("job", "Succeeded")
    space.kubectl("patch", "app", "job", "--type=merge", "-p", '{"spec": {"env": {"SECONDS_OF_WORK": "1"}}}')
    until(
        lambda: space.log("job").count("done") == 1 and space.status("job").get("currentRevision") == 2, "a second run"
    )
    space.phase("job", "Succeeded")


def test_a_job_that_runs_again_has_all_its_retries_again(space: Space, machine: Machine) -> None:
    space.run("job", "lab/job-fails:1", restartPolicy="Never", backoffLimit=1)
    space.phase("job", "Failed", reason="BackoffLimitExceeded")
    machine.node.exec("systemctl", "daemon-reload")  # from here on systemd keeps a stopped unit and its counter
    space.kubectl("patch", "app", "job", "--type=merge", "-p", '{"spec": {"env": {"AGAIN": "1"}}}')
    until(lambda: space.log("job").count("working") == 4, "two more tries", 10, lambda: space.log("job"))
    space.phase("job", "Failed", reason="BackoffLimitExceeded")


def test_finished_jobs_stay_finished_over_a_reboot_and_counts_survive(site: Site, space: Space) -> None:
    """By a node that boots alone: the agent comes back only afterwards, and finds nothing to change."""
    machine: Machine = site.machines["sav-02"]
    space.run("good", "lab/job-succeeds:1", "sav-02", restartPolicy="Never")
    space.run("bad", "lab/job-fails:1", "sav-02", restartPolicy="Never", backoffLimit=1)
    space.started("service", node="sav-02")
    space.phase("good", "Succeeded")
    space.phase("bad", "Failed")
    machine.node.exec("kill", "-KILL", str(machine.pid("service", space.namespace)))
    until(lambda: space.status("service")["restartCount"] == 1, "the restart is counted")
    space.phase("service", "Running")
    machine.node.exec("systemctl", "disable", "--now", "horchestra-agent")
    machine.node.reboot()
    until(lambda: machine.runs("service", space.namespace), "the service is back by systemd alone", 15)
    assert set(_ours(machine, space)) == {space.unit("service")}
    before = _ours(machine, space)
    machine.start_agent()
    until(lambda: ready(site.controller, "sav-02") == "True" and space.status("service")["phase"] == "Running",
          "the agent's word", 20, machine.agent_log)  # fmt: skip
    assert _ours(machine, space) == before
    assert space.status("good")["phase"] == "Succeeded"
    assert (space.status("bad")["phase"], space.status("bad")["exitCode"]) == ("Failed", 3)
    assert space.status("bad")["restartCount"] == 1
    assert space.status("service")["restartCount"] >= 1


def _ours(machine: Machine, space: Space) -> dict[str, tuple[str, str]]:
    return {unit: ids for unit, ids in machine.invocations().items() if f"-{space.namespace}." in unit}
