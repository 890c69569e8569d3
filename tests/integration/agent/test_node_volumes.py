"""Data is kept unless somebody says otherwise by name."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent.rig import Rig, application, removal, volume

pytestmark = pytest.mark.node
IMAGE = "docker.io/lab/no-user:1"


def writer(name: str, pv: str, **spec: Any) -> dict[str, Any]:
    script = "date > /data/when; ls -lan /data /; sleep 1000"
    return application(
        name, IMAGE, command=["/bin/sh", "-c", script], volumeMounts=[{"pv": pv, "path": "/data"}], **spec
    )


def directory(rig: Rig, pv: dict[str, Any]) -> Path:
    return rig.node.state / "volumes" / str(pv["metadata"]["uid"])


def test_a_new_volume_belongs_to_the_application_and_is_closed_to_others(rig: Rig) -> None:
    pv = volume("own")
    rig.apply(writer("own", "own", securityContext={"runAsUser": 4711, "runAsGroup": 4712}), pv)
    rig.ready("own", 30)
    status = directory(rig, pv).stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (4711, 4712, 0o700)
    assert (directory(rig, pv) / "when").exists()


def test_fs_group_gives_the_volume_to_a_group(rig: Rig) -> None:
    pv = volume("grouped")
    context = {"runAsUser": 4711, "runAsGroup": 4711, "fsGroup": 4800}
    rig.apply(writer("grouped", "grouped", securityContext=context), pv)
    rig.ready("grouped", 30)
    status = directory(rig, pv).stat()
    assert (status.st_gid, status.st_mode & 0o2070) == (4800, 0o2070)
    groups = rig.node.exec("grep", "Groups", f"/proc/{rig.pid('horchestra-app-grouped.service')}/status").stdout
    assert "4800" in groups.split()


def test_a_planted_symlink_does_not_lead_a_sub_path_out_of_the_volume(rig: Rig) -> None:
    pv = volume("trap")
    script = "ls /sub; sleep 1000"
    app = application("trap", IMAGE, command=["/bin/sh", "-c", script],
                      volumeMounts=[{"pv": "trap", "path": "/sub", "subPath": "a/b"}])  # fmt: skip
    rig.apply(app, pv)
    rig.ready("trap", 30)
    planted = directory(rig, pv) / "a"
    (planted / "b").rmdir()
    (planted / "b").symlink_to("/etc")
    rig.node.exec("systemctl", "restart", "horchestra-app-trap.service", check=False)
    rig.until(lambda: rig.status("trap").get("reason") == "InvalidSubPath", "refuse", 20)
    assert "passwd" not in rig.log(app).decode()


def test_a_delete_volume_goes_and_its_neighbours_stay(rig: Rig) -> None:
    doomed, kept = volume("doomed", reclaimPolicy="Delete"), volume("kept")
    rig.apply(writer("doomed", "doomed"), doomed, kept)
    rig.ready("doomed", 30)
    foreign = rig.node.state / "volumes" / "foreign"
    foreign.mkdir()
    (foreign / "file").touch()
    app = writer("doomed", "doomed")
    rig.apply(doomed, kept, removals=[removal(app), removal(doomed, delete_data=True)])
    rig.until(lambda: doomed["metadata"]["uid"] in rig.removed(), "delete", 20)
    assert not directory(rig, doomed).exists()
    assert directory(rig, kept).is_dir()
    assert (foreign / "file").exists()


def test_a_delete_volume_with_a_file_system_inside_is_kept(rig: Rig) -> None:
    pv = volume("mounted", reclaimPolicy="Delete")
    rig.apply(pv)
    inside = f"/var/lib/horchestra/volumes/{pv['metadata']['uid']}/inside"
    rig.node.exec("sh", "-c", f"mkdir {inside}; mount -t tmpfs none {inside}; touch {inside}/precious")
    rig.apply(removals=[removal(pv, delete_data=True)])
    rig.until(lambda: "VolumeHoldsFileSystem" in [e["reason"] for e in rig.messages("event")], "refuse", 10)
    assert rig.node.exec("ls", inside).stdout == "precious\n"
    rig.node.exec("umount", inside)
    rig.until(lambda: pv["metadata"]["uid"] in rig.removed(), "delete then", 10)


def test_another_lineage_deletes_no_data(rig: Rig) -> None:
    pv = volume("older", reclaimPolicy="Delete")
    rig.apply(pv)
    rig.until(lambda: directory(rig, pv).is_dir(), "make it", 5)
    rig.lineage = "lineage-2"
    rig.apply(removals=[removal(pv, delete_data=True)])
    rig.until(lambda: pv["metadata"]["uid"] in rig.removed(), "acknowledge", 10)
    assert directory(rig, pv).is_dir()
    rig.lineage = "lineage-1"


def test_kept_data_is_listed_not_reused_and_adopted_when_asked(rig: Rig) -> None:
    old = volume("again")
    app = writer("again", "again")
    rig.apply(app, old)
    rig.ready("again", 30)
    when = (directory(rig, old) / "when").read_text()
    rig.apply(removals=[removal(app), removal(old)])
    rig.until(lambda: {app["metadata"]["uid"], old["metadata"]["uid"]} <= rig.removed(), "remove", 20)
    new = volume("again", uid="99999999-0000-4000-8000-000000000001")
    second = application("second", IMAGE, volumeMounts=[{"pv": "again", "path": "/data"}])
    rig.apply(second, new)
    rig.ready("second", 20)
    assert list(directory(rig, new).iterdir()) == []
    note = rig.conditions("second")["PreviousData"]["message"]
    assert f"spec.adopt: {old['metadata']['uid']}" in note
    adopting = volume("back", uid="99999999-0000-4000-8000-000000000002", adopt=old["metadata"]["uid"])
    rig.apply(second, new, adopting)
    rig.until(lambda: directory(rig, adopting).is_dir(), "adopt", 5)
    assert (directory(rig, adopting) / "when").read_text() == when
    assert not directory(rig, old).exists()
