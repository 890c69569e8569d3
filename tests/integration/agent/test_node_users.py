"""Images shaped like those of the public hubs run under the default profile, as the user they name."""

from typing import Any

import pytest

from tests.integration.agent.rig import Rig, application

pytestmark = pytest.mark.node


def proc_status(rig: Rig, name: str, field: str) -> str:
    text = rig.node.exec("cat", f"/proc/{rig.pid(f'horchestra-app-{name}.service')}/status").stdout
    return next(line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith(field + ":"))


@pytest.mark.parametrize(
    ("image", "uid", "gid"),
    [("uid-65532", 65532, 65532), ("uid-1001-gid-0", 1001, 0), ("named-user", 4242, 4343), ("no-user", 0, 0)],
)
def test_the_image_says_who_it_runs_as(rig: Rig, image: str, uid: int, gid: int) -> None:
    rig.apply(application(image, f"docker.io/lab/{image}:1"))
    rig.ready(image, 30)
    assert proc_status(rig, image, "Uid").split()[0] == str(uid)
    assert proc_status(rig, image, "Gid").split()[0] == str(gid)
    assert proc_status(rig, image, "NoNewPrivs") == "1"


def test_nginx_with_a_root_master_serves_port_80(rig: Rig) -> None:
    app = application(
        "nginx", "docker.io/library/nginx:stable", ports=[{"port": 80}],
        volumeMounts=[{"tmpfs": {"size": "16Mi"}, "path": "/var/cache/nginx"}],
    )  # fmt: skip
    rig.apply(app)
    rig.ready("nginx", 40)
    assert rig.node.exec("curl", "-sf", "http://127.0.0.1/").stdout, rig.log(app).decode()


def test_redis_runs(rig: Rig) -> None:
    app = application("redis", "docker.io/library/redis:8", ports=[{"port": 6379}])
    rig.apply(app)
    rig.ready("redis", 40)
    assert "6379" in rig.node.exec("ss", "-ltn").stdout, rig.log(app).decode()


def test_run_as_non_root_gives_a_uid_of_its_own_that_stays(rig: Rig) -> None:
    app = application("private", "docker.io/lab/no-user:1", securityContext={"runAsNonRoot": True})
    rig.apply(app)
    rig.ready("private", 30)
    uid = proc_status(rig, "private", "Uid").split()[0]
    assert int(uid) > 1_000_000_000
    assert rig.environ("horchestra-app-private.service")["HOME"] == "/"


def test_the_sandbox_runs_and_has_nothing(rig: Rig) -> None:
    rig.apply(application("boxed", "docker.io/lab/no-user:1", securityContext={"profile": "sandbox"}))
    rig.ready("boxed", 30)
    assert proc_status(rig, "boxed", "CapBnd") == "0" * 16
    assert proc_status(rig, "boxed", "Seccomp") == "2"


@pytest.mark.parametrize(
    ("context", "caps"),
    [
        ({"profile": "hardened"}, 0xFB),
        ({"capabilities": {"drop": ["ALL"]}}, 0),
        ({"capabilities": {"drop": ["KILL"]}}, 0xDB),
    ],
)
def test_root_keeps_seven_capabilities_less_what_is_dropped(rig: Rig, context: dict[str, Any], caps: int) -> None:
    rig.apply(application(f"caps-{caps:x}", "docker.io/lab/no-user:1", securityContext=context))
    rig.ready(f"caps-{caps:x}", 30)
    assert int(proc_status(rig, f"caps-{caps:x}", "CapEff"), 16) == caps


def test_two_applications_of_one_uid_are_told_of_each_other(rig: Rig) -> None:
    rig.apply(application("one", "docker.io/lab/named-user:1"), application("other", "docker.io/lab/named-user:1"))
    rig.ready("one", 30)
    rig.ready("other", 30)
    rig.until(lambda: "SharedUid" in rig.conditions("one"), "tell", 12)
    assert "default/other" in rig.conditions("one")["SharedUid"]["message"]


def test_shared_memory_and_ipc_are_each_applications_own(rig: Rig) -> None:
    rig.apply(application("one", "docker.io/lab/named-user:1"), application("other", "docker.io/lab/named-user:1"))
    rig.ready("one", 30)
    rig.node.exec("touch", "/dev/shm/host")
    assert rig.inside("horchestra-app-one.service", "/bin/ls", "/dev/shm") == ""
    spaces = {rig.node.exec("readlink", f"/proc/{pid}/ns/ipc").stdout for pid in
              (rig.pid("horchestra-app-one.service"), rig.pid("horchestra-app-other.service"), 1)}  # fmt: skip
    assert len(spaces) == 3


def test_a_name_the_image_does_not_know_is_an_unknown_user(rig: Rig) -> None:
    app = application(
        "who", "docker.io/lab/no-user:1", securityContext={"runAsNonRoot": True, "profile": "sandbox", "runAsUser": 0}
    )
    rig.apply(app)
    rig.until(lambda: rig.status("who").get("reason") == "RunAsRootRefused", "refuse", 20)
