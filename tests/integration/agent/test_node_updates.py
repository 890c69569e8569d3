"""What restarts a process and what does not; updates, rollback, removal, and states that must change nothing."""

import time
from typing import Any

import pytest

from tests.integration.agent.rig import Rig, application, removal, volume

pytestmark = pytest.mark.node
IMAGE = "docker.io/lab/no-user:1"
UNIT = "horchestra-app-site.service"


def site(generation: int, **spec: Any) -> dict[str, Any]:
    return application("site", spec.pop("image", IMAGE), generation=generation, **spec)


def test_another_environment_restarts_and_limits_do_not(rig: Rig) -> None:
    rig.apply(site(1, env={"A": "1"}))
    rig.ready("site", 30)
    first = rig.show(UNIT, "InvocationID")
    rig.apply(site(2, env={"A": "1"}, resources={"limits": {"memory": "64Mi", "cpu": "500m"}}, minReadySeconds=0))
    rig.until(lambda: rig.show(UNIT, "MemoryMax") == str(64 << 20), "apply the limit", 5)
    rig.until(lambda: rig.status("site").get("currentRevision") == 2, "tell", 3)
    group = rig.show(UNIT, "ControlGroup")
    assert rig.node.exec("cat", f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes").stdout.strip() == str(64 << 20)
    assert rig.node.exec("cat", f"/sys/fs/cgroup/cpu{group}/cpu.cfs_quota_us").stdout.strip() == "50000"
    assert rig.show(UNIT, "InvocationID") == first
    rig.apply(site(3, env={"A": "2"}))
    rig.ready("site", generation=3)
    assert rig.environ(UNIT)["A"] == "2"
    assert rig.show(UNIT, "InvocationID") != first


def test_another_image_runs_in_place_and_the_old_root_goes(rig: Rig) -> None:
    rig.apply(site(4))
    rig.ready("site", generation=4)
    old = rig.show(UNIT, "RootDirectory")
    rig.apply(site(5, image="docker.io/lab/named-user:1"))
    rig.ready("site", generation=5)
    assert rig.show(UNIT, "RootDirectory") != old
    rig.until(lambda: rig.node.exec("test", "-e", old, check=False).returncode == 1, "remove the old root", 10)


def test_a_version_that_does_not_come_up_is_rolled_back_and_not_tried_again(rig: Rig) -> None:
    rig.apply(site(10, env={"A": "good"}))
    rig.ready("site", generation=10)
    rig.apply(site(11, command=["/bin/sh", "-c", "exit 7"], progressDeadlineSeconds=3))
    status = rig.until(lambda: (s := rig.status("site")).get("failedRevision") == 11 and s, "roll back", 20)
    assert status["currentRevision"] == 10
    rig.ready("site", generation=10)
    assert rig.environ(UNIT)["A"] == "good"
    assert "generation 10 runs again" in rig.conditions("site")["RolledBack"]["message"]
    assert "RolledBack" in [reason for reason, _ in rig.events("site")]
    before = rig.show(UNIT, "InvocationID")
    rig.stop_agent()
    rig.start_agent()
    time.sleep(1)  # long enough for a second try, were there one
    assert rig.show(UNIT, "InvocationID") == before
    rig.apply(site(12, env={"A": "better"}))
    rig.until(lambda: rig.status("site").get("currentRevision") == 12, "take the corrected spec", 20)
    assert "failedRevision" not in rig.status("site")


def test_an_image_that_cannot_be_pulled_leaves_the_old_one_running(rig: Rig) -> None:
    rig.apply(site(20))
    rig.ready("site", generation=20)
    before = rig.pid(UNIT)
    rig.apply(site(21, image="docker.io/lab/missing:1"))
    status = rig.until(lambda: (s := rig.status("site")).get("reason") == "ImageNotFound" and s, "tell", 20)
    assert status["phase"] == "Running"
    assert rig.pid(UNIT) == before
    rig.apply(site(22))
    rig.until(lambda: rig.status("site").get("reason", "") == "", "recover", 10)


def test_an_empty_state_changes_nothing(rig: Rig) -> None:
    rig.apply(site(30, env={"A": "new"}), volume("kept"))
    rig.ready("site", generation=30)
    before = rig.pid(UNIT)
    rig.apply()
    rig.until(lambda: rig.reports()["default/site"].get("orphaned"), "tell the orphan", 5)
    assert rig.pid(UNIT) == before
    assert rig.environ(UNIT)["A"] == "new"
    assert (rig.node.state / "volumes" / volume("kept")["metadata"]["uid"]).is_dir()
    rig.node.exec("kill", "-9", str(before))
    rig.until(lambda: rig.pid(UNIT) not in (0, before), "keep the orphan up", 5)


def test_removal_takes_everything_but_the_data(rig: Rig) -> None:
    pv = volume("data")
    app = application(
        "gone", IMAGE, command=["/bin/sh", "-c", "echo kept > /data/file; sleep 1000"],
        volumeMounts=[{"pv": "data", "path": "/data"}, {"pv": "data", "subPath": "a/b", "path": "/sub"}],
        terminationGracePeriodSeconds=1,
    )  # fmt: skip
    rig.apply(app, pv)
    rig.ready("gone", 30)
    root = rig.show("horchestra-app-gone.service", "RootDirectory")
    rig.apply(pv, removals=[removal(app)])
    rig.until(lambda: app["metadata"]["uid"] in rig.removed(), "acknowledge", 20)
    traces = f"{root} /etc/systemd/system/*gone* /run/horchestra/*/{app['metadata']['uid']}*"
    left = rig.node.exec("sh", "-c", f"ls -d {traces}", check=False).stdout
    assert left == ""
    assert app["metadata"]["uid"] not in rig.node.exec("findmnt", "-n").stdout
    assert rig.show("horchestra-app-gone.service", "LoadState") == "not-found"
    assert (rig.node.state / "volumes" / pv["metadata"]["uid"] / "file").read_text() == "kept\n"
    assert "default/gone" not in rig.reports()


def test_a_root_left_by_a_dying_agent_is_removed_at_its_next_start(rig: Rig) -> None:
    unit = "var-lib-horchestra-roots-99.mount"
    here = "/var/lib/horchestra"
    text = f"[Mount]\nWhat=overlay\nWhere={here}/roots/99\nType=overlay\nOptions=ro,lowerdir={here}/skel/99:/usr\n"
    rig.node.write(f"/etc/systemd/system/{unit}", text)
    rig.node.exec(
        "sh", "-c", f"mkdir -p {here}/roots/99 {here}/skel/99; systemctl daemon-reload; systemctl start {unit}"
    )
    rig.stop_agent()
    rig.start_agent()
    rig.until(lambda: rig.show(unit, "LoadState") == "not-found", "forget the mount", 10)
    assert "99" not in rig.node.exec("ls", f"{here}/roots", f"{here}/skel").stdout.split()


def test_a_new_application_of_the_same_name_waits_for_the_old_one(rig: Rig) -> None:
    old = application("twin", "docker.io/lab/ignores-sigterm:1", terminationGracePeriodSeconds=2)
    rig.apply(old)
    rig.phase("twin", "Running", 30)
    new = application("twin", IMAGE)
    new["metadata"]["uid"] = "11111111-2222-3333-4444-555555555555"
    rig.apply(new, removals=[removal(old)])
    rig.until(lambda: old["metadata"]["uid"] in rig.removed(), "remove the old one", 20)
    rig.until(lambda: rig.show("horchestra-app-twin.service", "ActiveState") == "active", "start the new one", 10)
    assert [r["uid"] for r in rig.reports().values() if r["name"] == "twin"] == [new["metadata"]["uid"]]


def test_a_port_held_by_somebody_else_is_named(rig: Rig) -> None:
    script = 'import socket,time;s=socket.socket();s.bind(("",7070));s.listen();time.sleep(1000)'
    rig.node.exec("systemd-run", "--unit=squatter", "python3", "-c", script)
    rig.until(lambda: ":7070" in rig.node.exec("ss", "-ltn").stdout, "listen", 5)
    rig.apply(application("ported", IMAGE, ports=[{"port": 7070}]))
    status = rig.until(lambda: (s := rig.status("ported")).get("reason") == "PortConflict" and s, "tell", 20)
    assert "squatter.service" in status["message"]
    rig.node.exec("systemctl", "stop", "squatter")
    rig.phase("ported", "Running", 10)
