"""The node's own files are damaged, its disk is full: what runs goes on, nothing is deleted, and it is said."""

import json
from typing import Any

import pytest

from tests.integration.agent.rig import Rig, application, removal, volume

pytestmark = pytest.mark.node
STATE = "/var/lib/horchestra"
UNIT = "horchestra-app-kept.service"


def shell(rig: Rig, script: str) -> str:
    return rig.node.exec("sh", "-c", script).stdout


@pytest.fixture(scope="module")
def kept(rig: Rig) -> dict[str, Any]:
    app = application("kept", "docker.io/lab/no-user:1", volumeMounts=[{"pv": "data", "path": "/data"}])
    rig.apply(app, volume("data"))
    rig.ready("kept", 40)
    shell(rig, f"echo precious >{STATE}/volumes/{volume('data')['metadata']['uid']}/file")
    return app


def layers(rig: Rig) -> set[str]:
    """Everything there that somebody would miss."""
    return set(shell(rig, f"ls -d {STATE}/volumes/*").split())


FILES = ["images/layers/*", "images/manifests/*", "apps/*/record.json", "desired.json", "apps/*/starts"]


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("damage", ["", "\\000\\377{", '{"uid":7,"current":[]}'])
def test_a_damaged_file_stops_nothing_and_deletes_nothing(
    rig: Rig, kept: dict[str, Any], what: str, damage: str
) -> None:
    pid = rig.pid(UNIT)
    rig.stop_agent()
    before = layers(rig)
    shell(rig, f"for file in {STATE}/{what}; do printf '{damage}' >$file; done")
    rig.start_agent()
    rig.apply(kept, volume("data"))
    rig.phase("kept", "Running")
    assert rig.pid(UNIT) == pid
    assert layers(rig) >= before
    assert rig.inside(UNIT, "/bin/ls", "/data") == "file\n"


def test_a_root_that_only_systemd_still_requires_is_removed_without_stopping_what_runs(
    rig: Rig, kept: dict[str, Any]
) -> None:
    """An agent died between writing a unit and the reload: systemd knows the old text, the disk has the new one."""
    pid, units = rig.pid(UNIT), "/etc/systemd/system"
    rig.stop_agent()
    shell(
        rig,
        f"""
        set -e
        root=$(sed -n 's/^Root=//p' {units}/{UNIT})
        mkdir -p {STATE}/roots/77 {STATE}/skel/77 {units}/{UNIT}.d
        sed "s,/roots/$root$,/roots/77,; s,/skel/$root:,/skel/77:," {units}/var-lib-horchestra-roots-$root.mount \\
          > {units}/var-lib-horchestra-roots-77.mount
        printf '[Unit]\\nRequiresMountsFor={STATE}/roots/77\\n' > {units}/{UNIT}.d/old.conf
        systemctl daemon-reload
        systemctl start var-lib-horchestra-roots-77.mount
        rm -r {units}/{UNIT}.d""",
    )
    rig.start_agent()
    rig.apply(kept, volume("data"))
    rig.until(lambda: not shell(rig, f"ls -d {STATE}/roots/77 2>/dev/null || :"), "the removal of the root", 10)
    assert rig.pid(UNIT) == pid


@pytest.mark.parametrize("odd", [
    {"applications": [{}], "volumes": [{}]},
    {"applications": [{"metadata": 7, "spec": []}], "volumes": [{"metadata": []}]},
    {"applications": [{"metadata": {"uid": {}, "name": [], "namespace": 1}}], "volumes": [{"metadata": {"uid": 7}}]},
    {"removals": [{"kind": "X", "name": "y", "uid": "../../etc", "delete_data": True},
                  {"kind": "PersistentVolume", "name": "y", "uid": "../../../etc", "delete_data": True},
                  {"kind": "Application", "name": "y", "uid": "../../etc"}]},
    {"secrets": [{"kind": "Secret", "namespace": "default", "name": "s", "uid": "u", "data": {"../x": "!!"}}]},
])  # fmt: skip
def test_an_odd_desired_state_neither_stops_the_agent_nor_deletes(
    rig: Rig, kept: dict[str, Any], odd: dict[str, Any]
) -> None:
    pid, before = rig.pid(UNIT), layers(rig)
    rig.revision += 1
    desired = {"applications": [], "volumes": [], "secrets": [], "removals": [], **odd}
    text = json.dumps({"lineage": rig.lineage, "revision": rig.revision, "desired": desired})
    (rig.control / "applied").unlink(missing_ok=True)
    (rig.control / "desired.new").write_text(text)
    (rig.control / "desired.new").rename(rig.control / "desired.json")
    rig.until(lambda: (rig.control / "applied").exists(), "apply", 10)
    rig.stop_agent()
    rig.start_agent()
    rig.apply(kept, volume("data"))
    assert rig.pid(UNIT) == pid
    assert layers(rig) >= before


def test_a_removal_finds_its_application_without_a_readable_record(rig: Rig) -> None:
    app = application("lost", "docker.io/lab/no-user:1")
    rig.apply(app)
    rig.ready("lost", 30)
    rig.stop_agent()
    uid = app["metadata"]["uid"]
    shell(rig, f"echo '{{' >{STATE}/apps/{uid}/record.json")
    rig.start_agent()
    rig.apply(removals=[removal(app)])
    rig.until(lambda: uid in rig.removed(), "remove it", 15)
    assert "lost" not in shell(rig, "systemctl list-units --all --no-legend 'horchestra-app-*'")
    assert shell(rig, f"ls {STATE}/apps/{uid} 2>&1 || true").find("No such") > 0


def test_units_that_cannot_be_written_are_said_and_written_later(rig: Rig, kept: dict[str, Any]) -> None:
    pid = rig.pid(UNIT)
    units = "/etc/systemd/system"
    shell(rig, f"mount --bind {units} {units} && mount -o remount,ro,bind {units}")
    try:
        fresh = application("fresh", "docker.io/lab/no-user:1")
        rig.apply(kept, fresh, volume("data"))
        rig.until(lambda: rig.status("fresh").get("message"), "say it", 20)
        assert "Read-only file system" in rig.status("fresh")["message"]
        rig.stop_agent()
        rig.start_agent()
        assert rig.pid(UNIT) == pid
    finally:
        shell(rig, f"umount {units}")
    rig.ready("fresh", 30)
