"""Images shaped like those of the public hubs run under the default profile, as the users they were made for."""

import re
import urllib.request
from typing import Any

import pytest

from tests.e2e.machine import Machine
from tests.e2e.site import Site, Space, volume
from tests.e2e.waiting import until
from tests.lab.command import run
from tests.lab.images import tiny
from tests.lab.oci import push
from tests.lab.server import answers

pytestmark = pytest.mark.node

CACHE = {"tmpfs": {"size": "16Mi"}, "path": "/var/cache/nginx"}


def test_nginx_serves_port_80_with_a_root_master_and_workers_of_another_uid_and_logs(
    space: Space, machine: Machine
) -> None:
    """Its log files are links to /dev/stdout and /dev/stderr, opened by the master."""
    space.started("nginx", "library/nginx:stable", ports=[{"port": 80}], volumeMounts=[CACHE])
    until(lambda: answers(machine.address, 80), "nginx listens", 10, lambda: space.explain("nginx"))
    page = urllib.request.urlopen(f"http://{machine.address}/?seen-in-the-log", timeout=5).read()
    assert b"Welcome to nginx!" in page
    assert _processes(machine, space, "nginx") == {"nginx": {"0", "101"}}
    until(lambda: "GET /?seen-in-the-log" in space.log("nginx"), "the access log in kubectl logs", 5)
    assert "start worker process" in space.log("nginx")


def test_redis_drops_root_and_keeps_its_data_in_a_volume(space: Space, machine: Machine) -> None:
    space.kubectl.apply(volume(f"{space.namespace}-data"))
    mount = {"pv": f"{space.namespace}-data", "path": "/data"}
    space.started("redis", "library/redis:8", ports=[{"port": 6379}], volumeMounts=[mount])
    until(lambda: _redis(machine, "PING") == "PONG", "redis answers", 10, lambda: space.explain("redis"))
    assert _redis(machine, "SET", "kept", "yes") == "OK"
    assert _redis(machine, "SAVE") == "OK"
    assert _processes(machine, space, "redis") == {"redis-server": {"999"}}
    machine.node.exec("kill", "-KILL", str(machine.pid("redis", space.namespace)))
    until(lambda: _redis(machine, "GET", "kept") == "yes", "the data is there after a kill", 20)
    space.kubectl("delete", "app", "redis")
    space.kubectl("delete", "pv", f"{space.namespace}-data")


@pytest.mark.parametrize(
    ("image", "identity"),
    [
        ("lab/uid-65532:1", "uid=65532 gid=65532"),
        ("lab/uid-1001-gid-0:1", "uid=1001 gid=0(root)"),
        ("lab/named-user:1", "uid=4242(appuser) gid=4343(appuser)"),
        ("lab/no-user:1", "uid=0 gid=0"),
    ],
    ids=["uid-without-passwd", "uid-with-gid-0", "named-user", "no-user-and-no-passwd"],
)
def test_an_image_runs_as_the_user_it_names(space: Space, image: str, identity: str) -> None:
    space.started("who", image)
    until(lambda: identity in space.log("who"), f"{identity} in the log", 10, lambda: space.explain("who"))


def test_each_of_them_has_only_the_capabilities_that_its_user_needs(space: Space, machine: Machine) -> None:
    space.run("rooted", "lab/no-user:1")
    space.started("unprivileged", "lab/uid-65532:1")
    space.phase("rooted", "Running")
    bounding = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7}
    assert _capabilities(machine, space, "rooted", "CapBnd") == sum(1 << bit for bit in bounding.values())
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert _capabilities(machine, space, "unprivileged", kind) == 0


def test_where_root_is_refused_an_image_without_a_user_gets_a_uid_of_its_own(space: Space, machine: Machine) -> None:
    space.run("one", "lab/no-user:1", securityContext={"runAsNonRoot": True})
    space.run("two", "lab/no-user:1", securityContext={"profile": "sandbox"})
    space.phase("one", "Running")
    space.phase("two", "Running")
    uids = {_uid(machine, space, name) for name in ("one", "two")}
    assert len(uids) == 2
    assert not uids & {0, 65534}


def test_a_user_that_the_image_names_and_does_not_have_is_a_reason(site: Site, space: Space) -> None:
    push(site.registry.endpoint, "lab/ghost", "1", tiny.shell(User="ghost"))
    space.run("haunted", "lab/ghost:1")
    status = space.phase("haunted", "Pending", reason="UnknownUser")
    assert "ghost" in status["message"]


def test_a_missing_image_is_pending_with_the_registrys_word(space: Space) -> None:
    space.run("lost", "lab/is-not-there:9")
    status = space.phase("lost", "Pending", reason="ImageNotFound")
    assert "lab/is-not-there:9" in status["message"]
    assert space.condition("lost", "ImageReady")["status"] == "False"


def test_a_mirror_is_the_only_way_to_its_registry(site: Site, space: Space) -> None:
    """Without the registry behind the mirror nothing is asked elsewhere, and it heals when the registry is back."""
    site.registry.stop()
    try:
        space.run("waiting", "lab/named-user:1", imagePullPolicy="Always")
        until(lambda: _reason(space, "waiting").startswith(("Image", "Registry")), "a reason that names the registry",
              20, lambda: space.explain("waiting"))  # fmt: skip
        assert site.registry.endpoint in space.status("waiting")["message"]
    finally:
        site.registry.start()
    space.phase("waiting", "Running", 40)


def _reason(space: Space, name: str) -> str:
    return str(space.status(name).get("reason", ""))


def _uid(machine: Machine, space: Space, name: str) -> int:
    text = machine.node.exec("cat", f"/proc/{machine.pid(name, space.namespace)}/status").stdout
    found = re.search(r"^Uid:\s+(\d+)", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def _capabilities(machine: Machine, space: Space, name: str, kind: str) -> int:
    text = machine.node.exec("cat", f"/proc/{machine.pid(name, space.namespace)}/status").stdout
    found = re.search(rf"^{kind}:\s+([0-9a-f]+)", text, re.MULTILINE)
    assert found is not None
    return int(found[1], 16)


def _processes(machine: Machine, space: Space, name: str) -> dict[str, set[str]]:
    """Program to the uids it runs as, in the application's control group."""
    [group] = machine.show(space.unit(name), "ControlGroup")
    found: dict[str, Any] = {}
    for pid in machine.node.exec("cat", f"/sys/fs/cgroup/systemd{group}/cgroup.procs").stdout.split():
        text = machine.node.exec("cat", f"/proc/{pid}/status").stdout
        words = {line.split(":")[0]: line.split()[1] for line in text.splitlines() if len(line.split()) > 1}
        found.setdefault(words["Name"], set()).add(words["Uid"])
    return found


def _redis(machine: Machine, *words: str) -> str:
    return run("redis-cli", "-h", machine.address, *words, check=False, timeout=10).stdout.strip()
