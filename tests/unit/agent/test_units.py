"""Unit files, rendered from values alone."""

from dataclasses import replace
from typing import Any

import pytest

from agent.errors import AgentError
from agent.launch import Launch, Mount
from agent.layout import Layout
from agent.units import Host, Identity, Root, render
from agent.users import Account
from horchestra.kinds.application import ApplicationSpec

APP = Identity("default", "web", "u-1")
LAUNCH = Launch(
    image="sha256:1", program="/bin/sh", argv=("sh", "-c", "x"), environment=(("PATH", "/bin"),), secret_environment=(),
    account=Account(0, 0), working_dir="/", profile="hardened", drop=(), low_port=False, mounts=(),
)  # fmt: skip


def service(launch: Launch = LAUNCH, version: int = 252, *, own_processes: bool = False, **spec: Any) -> list[str]:
    parsed = ApplicationSpec.model_validate({"image": "x", **spec})
    files = render(APP, parsed, launch, Root(7, ("aa", "bb")), Host(Layout(), version, own_processes), "SIGQUIT")
    return files[-1].text.splitlines()


def value(lines: list[str], name: str) -> list[str]:
    return [line.partition("=")[2] for line in lines if line.startswith(f"{name}=")]


def test_the_root_is_a_read_only_overlay_with_the_skeleton_on_top() -> None:
    mount = render(APP, ApplicationSpec(image="x"), LAUNCH, Root(7, ("aa", "bb")), Host(Layout(), 252))[0]
    assert mount.name == "var-lib-horchestra-roots-7.mount"
    state = "/var/lib/horchestra"
    assert f"Options=ro,nodev,lowerdir={state}/skel/7:{state}/l/aa:{state}/l/bb" in mount.text
    assert "Environment=LIBMOUNT_FORCE_MOUNT2=always" in mount.text


def test_more_layers_than_a_mount_can_take_are_refused() -> None:
    with pytest.raises(AgentError, match="TooManyLayers"):
        render(APP, ApplicationSpec(image="x"), LAUNCH, Root(7, ("a" * 8,) * 300), Host(Layout(), 252))


def test_the_service_starts_at_boot_waits_for_its_oneshot_and_never_gives_up() -> None:
    lines = service()
    assert value(lines, "Requires") == ["horchestra-start@u-1.service"]
    assert value(lines, "ConditionPathExists") == ["!/var/lib/horchestra/apps/u-1/finished"]
    assert (value(lines, "Type"), value(lines, "Restart"), value(lines, "StartLimitIntervalSec")) == (
        ["exec"], ["always"], ["0"],
    )  # fmt: skip
    assert value(lines, "KillSignal") == ["SIGQUIT"]
    assert value(lines, "WantedBy") == ["multi-user.target"]


def test_requests_weigh_and_protect_and_limits_cap() -> None:
    resources = {"requests": {"cpu": "500m", "memory": "64Mi"}, "limits": {"cpu": "1500m", "memory": "1Gi"}}
    lines = service(resources=resources)
    assert value(lines, "CPUWeight") == ["50"]
    assert value(lines, "MemoryLow") == [str(64 << 20)]
    assert value(lines, "CPUQuota") == ["150%"]
    assert value(lines, "MemoryMax") == [str(1 << 30)]


@pytest.mark.parametrize(("profile", "root", "low", "bounding", "ambient"), [
    ("hardened", True, False, "CHOWN DAC_OVERRIDE FOWNER FSETID SETUID SETGID KILL", []),
    ("hardened", True, True, "CHOWN DAC_OVERRIDE FOWNER FSETID SETUID SETGID KILL NET_BIND_SERVICE", []),
    ("hardened", False, False, "", []),
    ("hardened", False, True, "NET_BIND_SERVICE", ["CAP_NET_BIND_SERVICE"]),
    ("sandbox", False, False, "", []),
])  # fmt: skip
def test_capabilities_by_user_profile_and_port(
    profile: Any, root: bool, low: bool, bounding: str, ambient: list[str]
) -> None:
    account = Account(0, 0) if root else Account(1000, 1000)
    lines = service(replace(LAUNCH, profile=profile, account=account, low_port=low))
    assert value(lines, "CapabilityBoundingSet") == [" ".join(f"CAP_{name}" for name in bounding.split())]
    assert value(lines, "AmbientCapabilities") == ambient


def test_root_is_not_named_and_others_are() -> None:
    assert value(service(), "User") == value(service(), "Group") == []
    lines = service(replace(LAUNCH, account=Account(1000, 0, (7, 8))))
    assert (value(lines, "User"), value(lines, "Group")) == (["1000"], ["0"])
    assert value(lines, "SupplementaryGroups") == ["7 8"]


def test_a_user_namespace_gives_way_to_a_low_port() -> None:
    boxed = replace(LAUNCH, profile="sandbox", account=Account(1000, 1000))
    assert value(service(boxed), "PrivateUsers") == ["yes"]
    assert value(service(replace(boxed, low_port=True)), "PrivateUsers") == []


def test_directives_follow_the_systemd_that_runs_and_the_probe() -> None:
    assert value(service(version=247), "PrivateIPC") == []
    assert value(service(version=252), "PrivateIPC") == ["yes"]
    assert value(service(version=257), "PrivatePIDs") == []
    assert value(service(version=257, own_processes=True), "PrivatePIDs") == ["yes"]


def test_secret_variables_come_from_a_file_and_the_hosts_own_stay_out() -> None:
    lines = service(replace(LAUNCH, secret_environment=(("USER", "Secret", "db", "user"),)))
    assert value(lines, "EnvironmentFile") == ["/run/horchestra/secrets/u-1/env"]
    unset = value(lines, "UnsetEnvironment")[0].split()
    assert "LANG" in unset
    assert "USER" not in unset
    assert not any("db" in line for line in lines)


def test_mounts_are_bound_where_the_start_script_makes_them_safe() -> None:
    mounts = (
        Mount("pv", "/data", "pv-1"),
        Mount("pv", "/sub", "pv-1", "a/b", read_only=True),
        Mount("tmpfs", "/scratch", size=1024),
        Mount("files", "/etc/db", "secret.db", read_only=True),
    )
    lines = service(replace(LAUNCH, mounts=mounts))
    assert value(lines, "BindPaths") == ['"/var/lib/horchestra/volumes/pv-1":"/data"']
    assert '"/run/horchestra/sub/u-1/1":"/sub"' in value(lines, "BindReadOnlyPaths")
    assert '"/run/horchestra/secrets/u-1/files/secret.db":"/etc/db"' in value(lines, "BindReadOnlyPaths")
    assert '"/scratch:mode=1777,nosuid,nodev,size=1024"' in value(lines, "TemporaryFileSystem")


def test_the_start_key_changes_with_what_is_started_only() -> None:
    assert LAUNCH.key == replace(LAUNCH).key
    for other in (
        replace(LAUNCH, image="sha256:2"), replace(LAUNCH, argv=("sh",)), replace(LAUNCH, account=Account(0, 1)),
        replace(LAUNCH, mounts=(Mount("tmpfs", "/x", size=1),)), replace(LAUNCH, profile="package"),
    ):  # fmt: skip
        assert other.key != LAUNCH.key
