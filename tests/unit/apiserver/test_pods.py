from typing import Any

from horchestra.apiserver.pods import Pod, pod


def application(**status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "orch.ks-tool.dev/v1",
        "kind": "Application",
        "metadata": {
            "name": "web",
            "namespace": "default",
            "uid": "7c0ffee0-0000-4000-8000-000000000001",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "web"},
        },
        "spec": {"image": "img:1", "nodeName": "n1", "ports": [{"port": 80}]},
        "status": {"phase": "Running", "currentRevision": 1, "addresses": ["10.0.0.1"], **status},
    }


READY = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}]


def shown(obj: dict[str, Any]) -> dict[str, Any]:
    found = pod(obj, "7")
    assert found is not None
    Pod.model_validate(found, strict=False)
    return found


def test_a_running_application_is_a_running_pod() -> None:
    found = shown(application(conditions=READY, startedAt="2026-01-01T00:00:01Z", restartCount=2))
    assert found["metadata"]["name"] == "web"
    assert found["metadata"]["resourceVersion"] == "7"
    assert found["metadata"]["ownerReferences"][0]["controller"] is True
    assert found["spec"]["nodeName"] == "n1"
    assert found["spec"]["securityContext"] == {}
    assert found["status"]["phase"] == "Running"
    assert found["status"]["podIP"] == "10.0.0.1"
    conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
    assert conditions == dict.fromkeys(("PodScheduled", "Initialized", "ContainersReady", "Ready"), "True")
    container = found["status"]["containerStatuses"][0]
    assert (container["ready"], container["restartCount"]) == (True, 2)
    assert container["state"] == {"running": {"startedAt": "2026-01-01T00:00:01Z"}}


def test_pulling_and_starting_are_pending() -> None:
    for phase in ("Pending", "Pulling", "Starting"):
        found = shown(application(phase=phase))
        assert found["status"]["phase"] == "Pending"
        assert found["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == phase


def test_a_crash_loop_waits() -> None:
    found = shown(application(phase="Running", reason="CrashLoopBackOff", message="exit code 1"))
    waiting = found["status"]["containerStatuses"][0]["state"]["waiting"]
    assert waiting == {"reason": "CrashLoopBackOff", "message": "exit code 1"}


def test_a_finished_job_is_terminated() -> None:
    found = shown(application(phase="Failed", reason="Error", exitCode=3))
    assert found["status"]["phase"] == "Failed"
    assert found["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def test_terminating_is_a_deletion_timestamp() -> None:
    obj = application(phase="Terminating", startedAt="2026-01-01T00:00:01Z")
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    found = shown(obj)
    assert found["metadata"]["deletionTimestamp"] == "2026-01-01T01:00:00Z"
    assert found["status"]["phase"] == "Running"


def test_the_uid_outlives_restarts_and_changes_with_node_and_rollout() -> None:
    first = shown(application())["metadata"]["uid"]
    assert shown(application(restartCount=5))["metadata"]["uid"] == first
    assert shown(application(currentRevision=2))["metadata"]["uid"] != first
    moved = application()
    moved["spec"]["nodeName"] = "n2"
    assert shown(moved)["metadata"]["uid"] != first
    assert first != application()["metadata"]["uid"]


def test_the_uid_is_the_same_before_the_first_start() -> None:
    assert (
        shown(application(currentRevision=None, phase="Pulling"))["metadata"]["uid"]
        == shown(application())["metadata"]["uid"]
    )


def test_an_evicted_application_has_no_pod() -> None:
    assert pod(application(phase="Pending", reason="NodeDrained"), "7") is None


def test_every_column_has_a_cell() -> None:
    found = shown(application(conditions=READY, startedAt="2026-01-01T00:00:01Z"))
    cells = {column.name: column.cell(found) for column in Pod.resource.columns}
    assert cells == {"Ready": "1/1", "Status": "Running", "Restarts": 0, "IP": "10.0.0.1", "Node": "n1"}
