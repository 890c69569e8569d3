"""An application's life as its user sees it: steps, changes, deletion."""

from typing import Any

import pytest

from tests.e2e.machine import Machine
from tests.e2e.site import Space, volume
from tests.e2e.waiting import until

pytestmark = pytest.mark.node

WRITES = "echo $((`cat /data/starts 2>/dev/null || echo 0` + 1)) > /data/starts; "
STAY = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"


def shell(script: str) -> dict[str, Any]:
    return {"command": ["/bin/sh", "-c", script]}


def test_the_steps_of_a_start_are_events_that_describe_shows(space: Space) -> None:
    space.started("web", "lab/lines:1")
    until(lambda: "Started" in dict(space.events("web")), "the Event Started", 10)
    described = space.kubectl("describe", "app", "web")
    for reason in ("Scheduled", "Pulled", "Created", "Started"):
        assert any(line.split()[1:2] == [reason] for line in described.splitlines()), (reason, described)


def test_the_status_says_where_and_what_runs(space: Space, machine: Machine) -> None:
    status = space.started("web")
    assert status["node"] == "sav-01"
    assert status["addresses"] == [machine.address]
    assert status["imageDigest"].startswith("sha256:")
    assert status["observedGeneration"] == 1
    space.ready("web")
    kinds = {c["type"]: c["status"] for c in space.status("web")["conditions"]}
    assert {"Scheduled", "ImageReady", "VolumesReady", "Started", "Ready"} <= {
        k for k, v in kinds.items() if v == "True"
    }
    table = space.kubectl("get", "app", "web", "-o", "wide").splitlines()
    assert table[0].split() == ["NAME", "IMAGE", "STATUS", "RESTARTS", "AGE", "NODE", "IP", "PORTS", "MESSAGE"]
    assert table[1].split()[:4] == ["web", "docker.io/lab/no-user:1", "Running", "0"]


def test_a_new_image_runs_in_place_and_leaves_the_others_and_the_data_alone(space: Space, machine: Machine) -> None:
    name = f"{space.namespace[:50]}-data"
    space.kubectl.apply(volume(name))
    mounts = [{"pv": name, "path": "/data"}]
    space.started("neighbour")
    space.started("web", "lab/no-user:1", volumeMounts=mounts, **shell(WRITES + STAY))
    space.ready("web")
    pid, others = machine.pid("web", space.namespace), machine.invocations()
    del others[space.unit("web")]
    digest = space.status("web")["imageDigest"]

    space.kubectl("patch", "app", "web", "--type=merge", "-p", '{"spec": {"image": "docker.io/lab/lines:1"}}')
    space.ready("web")
    status = space.status("web")
    assert status["phase"] == "Running"
    assert status["imageDigest"] != digest
    assert machine.pid("web", space.namespace) != pid
    assert machine.inside("web", space.namespace, "/bin/cat", "/data/starts") == "2\n"
    now = machine.invocations()
    assert {unit: now.get(unit) for unit in others} == others


def test_what_need_not_restart_a_process_does_not(space: Space, machine: Machine) -> None:
    """Limits are applied live; labels, annotations and policies restart nothing."""
    space.started("web", resources={"limits": {"memory": "64Mi"}})
    before = machine.invocations()[space.unit("web")]
    space.kubectl("label", "app", "web", "colour=blue")
    space.kubectl("annotate", "app", "web", "owner=me")
    patch = '{"spec": {"resources": {"limits": {"memory": "96Mi", "cpu": "500m"}}, "terminationGracePeriodSeconds": 7}}'
    space.kubectl("patch", "app", "web", "--type=merge", "-p", patch)
    limits = [str(96 << 20), "500ms", "7s"]
    until(
        lambda: machine.show(space.unit("web"), "MemoryMax", "CPUQuotaPerSecUSec", "TimeoutStopUSec") == limits,
        "the new limits", 10, lambda: space.explain("web"),
    )  # fmt: skip
    assert machine.invocations()[space.unit("web")] == before
    group = machine.show(space.unit("web"), "ControlGroup")[0]
    assert machine.node.exec("cat", f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes").stdout == f"{96 << 20}\n"


def test_what_it_was_started_with_restarts_it(space: Space, machine: Machine) -> None:
    space.started("web", env={"COLOUR": "red"})
    for patch in ('{"env": {"COLOUR": "blue"}}', '{"securityContext": {"runAsUser": 4711}}', '{"args": ["sleep 600"]}'):
        before = machine.invocations()[space.unit("web")]
        space.kubectl("patch", "app", "web", "--type=merge", "-p", f'{{"spec": {patch}}}')
        space.phase("web", "Running")
        assert machine.invocations()[space.unit("web")] != before, patch
    assert machine.environ("web", space.namespace)["COLOUR"] == "blue"


def test_replacing_a_process_that_was_restarted_is_not_another_restart(space: Space, machine: Machine) -> None:
    space.started("web")
    machine.node.exec("kill", "-KILL", str(machine.pid("web", space.namespace)))
    until(lambda: space.status("web")["restartCount"] == 1, "the restart is counted", 5)
    machine.node.exec("systemctl", "daemon-reload")  # from here on systemd keeps a stopped unit and its counter
    space.kubectl("patch", "app", "web", "--type=merge", "-p", '{"spec": {"env": {"COLOUR": "blue"}}}')
    space.ready("web")
    assert space.status("web")["restartCount"] == 1


def test_deleting_an_application_removes_unit_mount_and_root_and_keeps_its_volume(
    space: Space, machine: Machine
) -> None:
    name = f"{space.namespace[:50]}-data"
    space.kubectl.apply(volume(name))
    before = _left(machine)
    space.started("web", volumeMounts=[{"pv": name, "path": "/data"}], **shell("echo kept > /data/file; " + STAY))
    uid = space.kubectl.get("pv", name)["metadata"]["uid"]
    own = _left(machine) - before
    assert {kind for kind, _ in own} == {"unit", "mount", "roots", "skel", "apps"}
    space.kubectl("delete", "app", "web")
    assert space.get("web") is None
    assert not own & _left(machine)
    assert (machine.volume(uid) / "file").read_text() == "kept\n"


def test_an_application_is_terminating_until_its_node_confirms(space: Space, machine: Machine) -> None:
    space.started("slow", "lab/ignores-sigterm:1", terminationGracePeriodSeconds=3)
    space.kubectl("delete", "app", "slow", "--wait=false")
    assert space.kubectl("get", "app", "slow").splitlines()[1].split()[2] == "Terminating"
    assert machine.pid("slow", space.namespace) != 0
    space.gone("slow")
    assert machine.pid("slow", space.namespace) == 0


def test_forcing_a_deletion_does_not_wait_and_the_node_removes_it_all_the_same(space: Space, machine: Machine) -> None:
    space.started("stuck", "lab/ignores-sigterm:1", terminationGracePeriodSeconds=3)
    space.kubectl("delete", "app", "stuck", "--grace-period=0", "--force")
    space.gone("stuck", 2)
    until(lambda: not machine.runs("stuck", space.namespace), "it stopped", 15)


def test_deleting_a_namespace_stops_its_applications_and_keeps_volumes(space: Space, machine: Machine) -> None:
    name = f"{space.namespace[:50]}-data"
    scope = space.site.space(f"{space.namespace[:50]}-more")
    scope.kubectl.apply(volume(name))
    scope.started("web", volumeMounts=[{"pv": name, "path": "/data"}])
    scope.started("more")
    space.started("other")
    scope.kubectl("delete", "namespace", scope.namespace, "--timeout=40s", timeout=50)
    assert not machine.runs("web", scope.namespace)
    assert not machine.runs("more", scope.namespace)
    assert machine.runs("other", space.namespace)
    kept = space.kubectl.get("pv", name)
    assert kept["status"]["phase"] == "Available"
    assert machine.volume(kept["metadata"]["uid"]).is_dir()
    space.kubectl("delete", "pv", name)


def test_the_same_name_in_two_namespaces_is_two_applications(space: Space, machine: Machine) -> None:
    other = space.site.space(f"{space.namespace[:50]}-2")
    space.started("web", "lab/named-user:1")
    other.started("web", "lab/uid-65532:1")
    until(lambda: "uid=4242" in space.log("web"), "the log of the one", 10)
    until(lambda: "uid=65532" in other.log("web"), "the log of the other", 10)
    assert "uid=65532" not in space.log("web")
    assert machine.pid("web", space.namespace) != machine.pid("web", other.namespace)
    other.kubectl("delete", "namespace", other.namespace, "--timeout=40s", timeout=50)
    assert machine.runs("web", space.namespace)


def _left(machine: Machine) -> set[tuple[str, str]]:
    """Unit files, mounted roots and what the agent's directories hold, except volumes and images."""
    mounts = machine.node.exec("findmnt", "--noheadings", "--list", "--output", "TARGET").stdout.split()
    units = machine.node.exec("ls", "/etc/systemd/system", "/etc/systemd/system/multi-user.target.wants").stdout.split()
    return {
        *(("unit", name) for name in units if "horchestra" in name),
        *(("mount", target) for target in mounts if target.startswith("/var/lib/horchestra/roots")),
        *((part, p.name) for part in ("roots", "skel", "apps") for p in (machine.node.state / part).iterdir()),
    }
