"""Ends of processes: crash back-off and jobs, counted and kept without the agent, over reboots too."""

import pytest

from tests.integration.agent.rig import Rig, application

pytestmark = pytest.mark.node
CRASHES = "docker.io/lab/crashes:1"


def test_a_job_that_succeeds_is_finished_and_stays_so(rig: Rig) -> None:
    app = application("job", "docker.io/lab/job-succeeds:1", restartPolicy="Never")
    rig.apply(app)
    status = rig.phase("job", "Succeeded", 30)
    assert status["exitCode"] == 0
    assert status["restartCount"] == 0
    rig.stop_agent()
    rig.node.power_cut()
    rig.node.start()
    rig.node.wait_ready()
    assert rig.show("horchestra-app-job.service", "ActiveState") == "inactive"
    assert rig.log_lines_without_agent("horchestra-app-job.service") == ["working", "done"]
    rig.start_agent()
    rig.phase("job", "Succeeded", 5)
    assert rig.show("horchestra-app-job.service", "ActiveState") == "inactive"
    rig.apply(application("job", "docker.io/lab/job-succeeds:1", generation=2, restartPolicy="Never", env={"A": "2"}))
    rig.until(lambda: rig.status("job").get("currentRevision") == 2, "run again", 10)
    rig.phase("job", "Succeeded", 10)
    assert rig.log_lines_without_agent("horchestra-app-job.service") == ["working", "done"] * 2


def test_a_job_that_fails_is_failed_with_its_code(rig: Rig) -> None:
    rig.apply(application("bad", "docker.io/lab/job-fails:1", restartPolicy="Never"))
    status = rig.phase("bad", "Failed", 30)
    assert (status["exitCode"], status["reason"]) == (3, "BackoffLimitExceeded")


def test_retries_are_counted_and_end(rig: Rig) -> None:
    rig.apply(application("retry", "docker.io/lab/job-fails:1", restartPolicy="OnFailure", backoffLimit=1))
    status = rig.phase("retry", "Failed", 30)
    assert status["restartCount"] == 1
    assert status["reason"] == "BackoffLimitExceeded"


def test_a_deadline_ends_a_job(rig: Rig) -> None:
    app = application("slow", "docker.io/lab/job-succeeds:1", restartPolicy="OnFailure", activeDeadlineSeconds=1,
                      env={"SECONDS_OF_WORK": "60"})  # fmt: skip
    rig.apply(app)
    assert rig.phase("slow", "Failed", 30)["reason"] == "DeadlineExceeded"


def test_a_crash_loop_backs_off_without_the_agent_and_the_count_survives_a_power_cut(rig: Rig) -> None:
    rig.apply(application("loop", CRASHES))
    status = rig.until(lambda: (s := rig.status("loop")).get("reason") == "CrashLoopBackOff" and s, "tell", 30)
    assert status["phase"] == "Starting"
    assert status["exitCode"] == 1
    assert "exited with code 1" in status["message"]
    assert status["restartCount"] == 2  # the first restart came at once, the second waits 10 s
    rig.stop_agent()
    rig.until(lambda: len(rig.log_lines_without_agent("horchestra-app-loop.service")) == 3, "restart alone", 15)
    rig.node.power_cut()
    rig.node.start()
    rig.node.wait_ready()
    rig.until(lambda: len(rig.log_lines_without_agent("horchestra-app-loop.service")) >= 4, "start at boot", 5)
    rig.start_agent()
    rig.until(lambda: rig.status("loop").get("restartCount", 0) >= 4, "remember the count", 10)


def test_a_program_that_does_not_exist_is_explained(rig: Rig) -> None:
    rig.apply(application("nothing", CRASHES, command=["/bin/nothing"]))
    status = rig.until(lambda: (s := rig.status("nothing")).get("reason") == "CommandNotFound" and s, "tell", 20)
    assert "/bin/nothing" in status["message"]
    rig.apply(application("nothing", CRASHES, generation=2, command=["/etc"]))
    rig.until(lambda: rig.status("nothing").get("reason") == "NotExecutable", "tell", 20)


def test_a_memory_limit_that_kills_is_named(rig: Rig) -> None:
    command = ["/bin/sh", "-c", "sleep 1; exec tail -c 190000000 /dev/zero"]
    rig.apply(
        application("hungry", "docker.io/lab/no-user:1", command=command, resources={"limits": {"memory": "16Mi"}})
    )
    status = rig.until(lambda: (s := rig.status("hungry")).get("reason") == "CrashLoopBackOff" and s, "tell", 30)
    assert "its memory limit of 16Mi (OOMKilled)" in status["message"]
    assert status["exitCode"] == 137
