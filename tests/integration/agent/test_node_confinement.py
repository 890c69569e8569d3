"""What applications that mean harm reach of the host and of each other, under each profile, on Debian 12's systemd."""

import tarfile

import pytest

from tests.integration.agent.rig import Rig, application, volume
from tests.lab.images.debian import architecture
from tests.lab.images.tiny import shell
from tests.lab.oci import add_directory, add_symlink, image, layer, push
from tests.lab.registry import Registry

pytestmark = pytest.mark.node
_STAY = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"
_TRIES = r"""
B=/bin/busybox
try() { name=$1; shift; if "$@" >/dev/null 2>&1; then echo "can $name"; else echo "cannot $name"; fi; }
try write-root touch /x
try see-the-hosts-state ls /var/lib/horchestra
try see-the-hosts-bus ls /run/dbus/system_bus_socket
try see-the-journals-socket ls /run/systemd/journal/socket
try make-devices $B mknod /tmp/d b 8 0
try open-kmsg head -c 1 /dev/kmsg
try mount mount -t tmpfs x /tmp
try unshare-users $B unshare -U true
try unshare-mounts $B unshare -m true
try set-sysctl sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
try set-core-pattern sh -c 'echo x >/proc/sys/kernel/core_pattern'
try write-sys sh -c 'echo 1 >/sys/kernel/mm/ksm/run'
try make-cgroups mkdir /sys/fs/cgroup/x
try use-raw-sockets $B ping -c 1 -W 1 127.0.0.1
try make-setuid-programs sh -c 'cat /bin/busybox >/tmp/s; chmod 4755 /tmp/s'
try set-hostname hostname evil
try chroot $B chroot / true
try enter-the-hosts-init ls /proc/1/root/etc/shadow
try read-the-hosts-init cat /proc/1/environ
for p in /proc/[0-9]*; do
  [ -e "$p/root/var/lib/horchestra" ] && echo "can reach the host through $($B tr '\0' ' ' <"$p/cmdline")"
done
echo tried
"""


def tried(rig: Rig, name: str, image: str, profile: str) -> set[str]:
    app = application(name, f"docker.io/lab/{image}:1", args=[_TRIES + _STAY], securityContext={"profile": profile})
    rig.apply(app)
    rig.ready(name, 40)
    rig.until(lambda: b"tried" in rig.log(app), "try everything", 20)
    return {line for line in rig.log(app).decode().splitlines() if line.startswith("can ")}


@pytest.mark.parametrize(
    ("image", "profile"),
    [("no-user", "hardened"), ("named-user", "hardened"), ("no-user", "sandbox"), ("uid-65532", "sandbox")],
)
def test_nothing_of_the_host_is_in_reach(rig: Rig, image: str, profile: str) -> None:
    assert tried(rig, f"{image}-{profile}", image, profile) == set()


def test_a_package_without_root_reaches_nothing_of_the_host_either(rig: Rig) -> None:
    reached = tried(rig, "package", "named-user", "package")
    assert reached <= {"can unshare-users", "can make-setuid-programs"}


def test_other_users_of_the_host_have_no_way_to_images_and_volumes(rig: Rig) -> None:
    rig.apply(application("open", "docker.io/lab/no-user:1", volumeMounts=[{"pv": "o", "path": "/tmp"}]), volume("o"))
    rig.ready("open", 30)
    for place in ("roots", "volumes", "l", "apps"):
        result = rig.node.exec("setpriv", "--reuid=65534", "--clear-groups", "ls", f"/var/lib/horchestra/{place}",
                               check=False)  # fmt: skip
        assert "Permission denied" in result.stderr, place


def test_a_root_application_says_that_it_shares_the_hosts_root(rig: Rig) -> None:
    rig.apply(application("rooted", "docker.io/lab/no-user:1"))
    rig.ready("rooted", 30)
    assert "host account root" in rig.conditions("rooted")["SharedUid"]["message"]


def links(tar: tarfile.TarFile) -> None:
    add_symlink(tar, "up", "../../../../../../etc")
    add_directory(tar, "var")
    for name, target in (("lib", "/etc"), ("tmp", "/tmp"), ("run", "/run")):
        add_symlink(tar, f"var/{name}", target)
    add_symlink(tar, "etc/resolv.conf", "/etc/shadow")
    add_symlink(tar, "etc/hosts", "../../../../etc/shadow")
    add_symlink(tar, "work", "up/work")


def test_symlinks_of_an_image_lead_no_mount_out_of_it(rig: Rig, registry: Registry) -> None:
    config = {"Env": ["PATH=/bin"], "Cmd": ["/bin/sh", "-c", _STAY], "WorkingDir": "/work"}
    made = image([shell().blobs[0], layer(links)], config, architecture=architecture())
    push(registry.endpoint, "lab/links", "1", made)
    mounts = [
        {"pv": "l", "path": "/up/pv"},
        {"tmpfs": {"size": "1Mi"}, "path": "/var/lib/memory"},
        {"pv": "l", "path": "/var/run/x/y", "subPath": "s"},
    ]
    rig.apply(application("links", "docker.io/lab/links:1", volumeMounts=mounts), volume("l"))
    rig.ready("links", 30)
    unit = "horchestra-app-links.service"
    inside = rig.inside(unit, "/bin/busybox", "mount")
    for point in ("/etc/pv", "/etc/memory", "/var/run/x/y", "/etc/resolv.conf", "/etc/hosts"):
        assert f" on {point} " in inside, inside
    assert "root:" not in rig.inside(unit, "/bin/cat", "/etc/resolv.conf", "/etc/hosts")
    after = rig.node.exec("find", "/etc").stdout
    assert not [path for path in after.splitlines() if path.endswith(("/pv", "/memory"))]
