"""Volumes: kept unless somebody says otherwise by name, and nothing else on the node's disk is ever touched."""

from typing import Any

import pytest

from tests.e2e.machine import Machine
from tests.e2e.site import Space, volume
from tests.e2e.waiting import throughout, until

pytestmark = pytest.mark.node

STAY = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"


def writing(name: str, text: str, **mount: Any) -> dict[str, Any]:
    """What an application needs to write a file into a volume once."""
    return {
        "command": ["/bin/sh", "-c", f"echo {text} > /data/file; {STAY}"],
        "volumeMounts": [{"pv": name, "path": "/data", **mount}],
    }


@pytest.fixture
def name(space: Space) -> str:
    """The name of a volume that no other test has."""
    return f"{space.namespace[:50]}-data"


def uid_of(space: Space, name: str) -> str:
    return str(space.kubectl.get("pv", name)["metadata"]["uid"])


def written(machine: Machine, uid: str, text: str) -> None:
    file = machine.volume(uid) / "file"
    until(lambda: file.exists() and file.read_text() == f"{text}\n", f"{text} in {file}", 10)


def test_a_volume_in_use_is_terminating_names_its_users_and_goes_with_the_last(
    space: Space, machine: Machine, name: str
) -> None:
    space.kubectl.apply(volume(name))
    space.started("web", **writing(name, "kept"))
    uid = uid_of(space, name)
    written(machine, uid, "kept")
    space.kubectl("delete", "pv", name, "--wait=false")
    shown = space.kubectl.get("pv", name)
    assert shown["metadata"]["deletionTimestamp"]
    assert space.kubectl("get", "pv", name).splitlines()[1].split()[4] == "Terminating"
    until(lambda: f"{space.namespace}/web" in space.kubectl.get("pv", name)["status"]["message"], "the user named", 5)
    assert machine.runs("web", space.namespace)
    space.kubectl("delete", "app", "web")
    until(lambda: space.site.controller.get("pv", name) is None, "the volume is gone", 10)
    assert (machine.volume(uid) / "file").read_text() == "kept\n"


def test_a_kept_directory_stays_listed_on_its_node(space: Space, machine: Machine, name: str) -> None:
    space.kubectl.apply(volume(name))
    space.started("web", **writing(name, "kept"))
    uid = uid_of(space, name)
    written(machine, uid, "kept")
    space.kubectl("delete", "app", "web")
    space.kubectl("delete", "pv", name)
    until(lambda: _listed(space, uid).get("phase") == "Retained", "listed as kept", 10, lambda: _listed(space, uid))
    assert _listed(space, uid)["name"] == name
    assert _listed(space, uid)["path"] == f"/var/lib/horchestra/volumes/{uid}"


def test_a_delete_volume_removes_its_own_directory_only(space: Space, machine: Machine, name: str) -> None:
    kept, foreign = f"{name}-kept", machine.volume("not-ours")
    foreign.mkdir(exist_ok=True)
    (foreign / "file").write_text("foreign\n")
    space.kubectl.apply(volume(name, reclaimPolicy="Delete"), volume(kept))
    space.started("gone", **writing(name, "gone"))
    space.started("kept", **writing(kept, "kept"))
    uid, kept_uid = uid_of(space, name), uid_of(space, kept)
    written(machine, uid, "gone")
    written(machine, kept_uid, "kept")
    others = machine.volumes() - {uid, f"{uid}.json"}
    space.kubectl("delete", "app", "gone")
    assert machine.volume(uid).is_dir()
    space.kubectl("delete", "pv", name)
    until(lambda: not machine.volume(uid).exists(), "its directory is removed", 10, machine.agent_log)
    assert machine.volumes() >= others
    assert (foreign / "file").read_text() == "foreign\n"
    assert (machine.volume(kept_uid) / "file").read_text() == "kept\n"


def test_a_delete_volume_in_use_keeps_its_data_until_its_last_user_goes(
    space: Space, machine: Machine, name: str
) -> None:
    space.kubectl.apply(volume(name, reclaimPolicy="Delete"))
    space.started("web", **writing(name, "mine"))
    uid = uid_of(space, name)
    written(machine, uid, "mine")
    space.kubectl("delete", "pv", name, "--wait=false")
    throughout(lambda: (machine.volume(uid) / "file").exists(), "the data is there", 2)
    space.kubectl("delete", "app", "web")
    until(lambda: not machine.volume(uid).exists(), "its directory is removed", 10, machine.agent_log)


def test_deleting_every_volume_removes_no_kept_data(space: Space, machine: Machine, name: str) -> None:
    names = [f"{name}-{number}" for number in range(3)]
    space.kubectl.apply(*(volume(one) for one in names))
    for number, one in enumerate(names):
        space.run(f"web-{number}", **writing(one, f"data-{number}"))
    uids = []
    for number, one in enumerate(names):
        space.phase(f"web-{number}", "Running")
        uids.append(uid_of(space, one))
        written(machine, uids[-1], f"data-{number}")
    space.kubectl("delete", "app", "--all")
    space.kubectl("delete", "pv", *names)
    for number, uid in enumerate(uids):
        assert (machine.volume(uid) / "file").read_text() == f"data-{number}\n"


def test_a_symlink_planted_in_a_volume_leads_its_removal_nowhere(space: Space, machine: Machine, name: str) -> None:
    machine.node.write("/srv/precious/file", "precious\n")
    space.kubectl.apply(volume(name, reclaimPolicy="Delete"))
    script = "ln -s /srv/precious /data/link; ln -s ../../../../srv/precious /data/up; echo x > /data/file; " + STAY
    image = "library/redis:8"  # it has ln
    space.started("web", image, command=["/bin/sh", "-c", script], volumeMounts=[{"pv": name, "path": "/data"}])
    uid = uid_of(space, name)
    written(machine, uid, "x")
    space.kubectl("delete", "app", "web")
    space.kubectl("delete", "pv", name)
    until(lambda: not machine.volume(uid).exists(), "its directory is removed", 10, machine.agent_log)
    assert machine.node.exec("cat", "/srv/precious/file").stdout == "precious\n"


def test_the_node_of_a_volume_cannot_change(space: Space, name: str) -> None:
    space.kubectl.apply(volume(name))
    done = space.kubectl.run("patch", "pv", name, "--type=merge", "-p", '{"spec": {"node": "sav-02"}}')
    assert done.returncode == 1
    assert "spec.node" in done.stderr
    space.kubectl("delete", "pv", name)


def test_an_unknown_directory_cannot_be_adopted(space: Space, machine: Machine, name: str) -> None:
    machine.volume("somebody-elses").mkdir(exist_ok=True)
    space.kubectl.apply(volume(name, adopt="somebody-elses"))
    space.run("web", volumeMounts=[{"pv": name, "path": "/data"}])
    status = space.phase("web", "Pending", reason="VolumeNotAdoptable")
    assert "somebody-elses" in status["message"]
    assert machine.volume("somebody-elses").is_dir()
    space.kubectl("delete", "app", "web")
    space.kubectl("delete", "pv", name)


def test_a_new_volume_belongs_to_who_the_image_says_else_to_the_application(
    space: Space, machine: Machine, name: str
) -> None:
    space.kubectl.apply(volume(name), volume(f"{name}-2"))
    space.started("image", "library/redis:8", ports=[{"port": 6390}], args=["redis-server", "--port", "6390"],
                  volumeMounts=[{"pv": name, "path": "/data"}])  # fmt: skip
    space.started("own", "lab/named-user:1", volumeMounts=[{"pv": f"{name}-2", "path": "/data"}])
    first, second = machine.volume(uid_of(space, name)).stat(), machine.volume(uid_of(space, f"{name}-2")).stat()
    assert (first.st_uid, first.st_gid, first.st_mode & 0o7777) == (999, 999, 0o755)
    assert (second.st_uid, second.st_gid, second.st_mode & 0o7777) == (4242, 4343, 0o700)


def test_a_sub_path_and_a_read_only_mount_are_as_they_say(space: Space, machine: Machine, name: str) -> None:
    space.kubectl.apply(volume(name))
    mounts = [
        {"pv": name, "path": "/data", "subPath": "inner/most"},
        {"pv": name, "path": "/all", "readOnly": True},
        {"tmpfs": {"size": "1Mi"}, "path": "/scratch"},
    ]
    script = "echo kept > /data/file; echo no > /all/file; echo $? > /data/code; " + STAY
    space.started("web", command=["/bin/sh", "-c", script], volumeMounts=mounts)
    directory = machine.volume(uid_of(space, name)) / "inner" / "most"
    until(lambda: (directory / "code").exists(), "it wrote", 10, lambda: space.log("web"))
    assert (directory / "file").read_text() == "kept\n"
    assert (directory / "code").read_text() != "0\n"
    assert not (machine.volume(uid_of(space, name)) / "file").exists()
    fill = ("/bin/sh", "-c", "head -c 2000000 /dev/zero > /scratch/big; echo $?")
    assert machine.inside("web", space.namespace, *fill, check=False).strip() != "0"


def _listed(space: Space, uid: str) -> dict[str, Any]:
    node = space.site.controller.get("node", "sav-01") or {}
    return next((v for v in node["status"].get("volumes", []) if v["uid"] == uid), {})
