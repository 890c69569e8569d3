"""What keeps an application off its node: refused at once, or awaited and healed by itself."""

import pytest
import yaml

from tests.e2e.kubectl import Kubectl
from tests.e2e.machine import joined
from tests.e2e.site import Site, Space, application, volume
from tests.e2e.waiting import until
from tests.lab.nodes import Nodes

pytestmark = pytest.mark.node


def test_a_port_conflict_is_refused_and_names_the_other_application(space: Space) -> None:
    space.run("first", ports=[{"port": 7100}])
    done = _refused(space.kubectl, application("second", "lab/no-user:1", ports=[{"port": 7100}]))
    assert "spec.ports[0].port" in done
    assert f'application "{space.namespace}/first"' in done
    space.started("elsewhere", node="sav-02", ports=[{"port": 7100}])


def test_a_port_that_a_process_of_the_host_holds_is_told_with_the_process(space: Space) -> None:
    machine = space.site.machines["sav-01"]
    script = "import socket,time; s=socket.socket(); s.bind(('0.0.0.0', 7101)); s.listen(); time.sleep(600)"
    machine.node.exec("systemd-run", "--unit=squatter", "--quiet", "python3", "-c", script)
    try:
        until(lambda: "7101" in machine.node.exec("ss", "-ltn").stdout, "the squatter listens", 5)
        space.run("web", ports=[{"port": 7101}])
        status = space.phase("web", "Pending", reason="PortConflict")
        assert "squatter" in status["message"]
    finally:
        machine.node.exec("systemctl", "stop", "squatter")
    space.phase("web", "Running")


def test_more_than_the_node_has_is_refused_with_what_is_free(space: Space) -> None:
    said = _refused(space.kubectl, application("big", "lab/no-user:1", resources={"requests": {"memory": "9Ti"}}))
    assert "spec.resources.requests.memory" in said
    assert "9Ti" in said


def test_a_request_above_its_limit_is_refused(space: Space) -> None:
    resources = {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}
    said = _refused(space.kubectl, application("wrong", "lab/no-user:1", resources=resources))
    assert "spec.resources.requests" in said


def test_two_applications_cannot_mount_a_volume_that_is_not_shared(space: Space) -> None:
    name = f"{space.namespace[:40]}-data"
    space.kubectl.apply(volume(name))
    mounts = [{"pv": name, "path": "/data"}]
    space.started("first", volumeMounts=mounts)
    said = _refused(space.kubectl, application("second", "lab/no-user:1", volumeMounts=mounts))
    assert f'application "{space.namespace}/first"' in said
    space.kubectl("patch", "pv", name, "--type=merge", "-p", '{"spec": {"shared": true}}')
    space.started("second", volumeMounts=mounts)


def test_a_volume_that_does_not_exist_is_awaited(space: Space) -> None:
    name = f"{space.namespace[:40]}-late"
    warned = space.run("web", volumeMounts=[{"pv": name, "path": "/data"}])
    assert "Warning" in warned
    assert name in warned
    status = space.phase("web", "Pending", reason="VolumeNotFound")
    assert name in status["message"]
    space.kubectl.apply(volume(name))
    space.phase("web", "Running")


def test_without_a_node_it_is_pending_as_unscheduled(space: Space) -> None:
    space.run("web", node="")
    assert space.phase("web", "Pending", reason="Unscheduled")["message"]
    space.kubectl("patch", "app", "web", "--type=merge", "-p", '{"spec": {"nodeName": "sav-02"}}')
    space.phase("web", "Running")


def test_moving_to_another_node_stops_it_on_the_first(space: Space) -> None:
    space.started("web")
    space.kubectl("patch", "app", "web", "--type=merge", "-p", '{"spec": {"nodeName": "sav-02"}}')
    until(lambda: space.status("web").get("node") == "sav-02" and space.status("web")["phase"] == "Running",
          "it runs on sav-02", 20, lambda: space.explain("web"))  # fmt: skip
    until(lambda: not space.site.machines["sav-01"].runs("web", space.namespace), "it no longer runs on sav-01", 20)
    assert space.site.machines["sav-02"].runs("web", space.namespace)


def test_a_node_that_has_not_joined_is_awaited_and_the_oldest_application_wins_what_conflicts(
    site: Site, space: Space, lab_nodes: Nodes
) -> None:
    name = "late-01"
    warned = space.kubectl.apply(application("web", "lab/no-user:1", name, ports=[{"port": 7200}]))
    assert "Warning" in warned
    assert name in warned
    status = space.phase("web", "Pending", reason="NodeNotRegistered")
    assert "createnodecert" in status["message"]
    site.controller.bundle(name)
    [machine] = joined(lab_nodes, site.controller, site.registry.endpoint, (name,))
    try:
        space.phase("web", "Running")
        assert machine.runs("web", space.namespace)
        said = _refused(space.kubectl, application("later", "lab/no-user:1", name, ports=[{"port": 7200}]))
        assert f'application "{space.namespace}/web"' in said
        space.kubectl("delete", "app", "web")
    finally:
        machine.remove()
        space.kubectl("delete", "node", name)


def _refused(kubectl: Kubectl, obj: dict[str, object]) -> str:
    """What kubectl says when the object is refused."""
    done = kubectl.run("apply", "-f", "-", input=yaml.safe_dump(obj))
    assert done.returncode == 1, done.stdout
    return done.stderr
