"""Secrets and ConfigMaps reach the process that names them, and nobody else on the node."""

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.machine import Machine
from tests.e2e.site import Space, configmap, secret
from tests.e2e.waiting import until

pytestmark = pytest.mark.node

VALUE = "s3cret-value-that-nobody-may-see"
OLD, NEW = "old-value", "new-value"
STAY = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"


def from_secret(name: str, key: str = "password", **more: Any) -> dict[str, Any]:
    return {"secretKeyRef": {"name": name, "key": key, **more}}


def test_variables_and_files_come_from_secrets_and_config_maps(space: Space, machine: Machine) -> None:
    space.kubectl.apply(secret("db", password=VALUE), configmap("settings", level="debug", text="a\nb\n"))
    space.started(
        "web",
        "lab/named-user:1",
        env=[
            {"name": "PASSWORD", "valueFrom": from_secret("db")},
            {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "level"}}},
            {"name": "ABSENT", "valueFrom": from_secret("db", "no-such-key", optional=True)},
        ],
        volumeMounts=[
            {"secret": {"name": "db"}, "path": "/etc/db"},
            {"configMap": {"name": "settings"}, "path": "/etc/settings"},
        ],
    )
    environ = machine.environ("web", space.namespace)
    assert (environ["PASSWORD"], environ["LEVEL"]) == (VALUE, "debug")
    assert "ABSENT" not in environ
    as_user = ("/bin/busybox", "sh", "-c", "cat /etc/db/password; cat /etc/settings/text")
    assert machine.inside("web", space.namespace, *as_user) == VALUE + "a\nb\n"


def test_binary_values_and_newlines_arrive_byte_for_byte(space: Space, machine: Machine) -> None:
    raw = bytes(range(256)) * 3
    obj = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "raw"}}
    text = 'line one\n"two" $HOME %h \\\n\n'
    values = {"blob": base64.b64encode(raw).decode(), "text": base64.b64encode(text.encode()).decode()}
    space.kubectl.apply({**obj, "data": values})
    env = [{"name": "TEXT", "valueFrom": from_secret("raw", "text")}]
    space.started("web", env=env, volumeMounts=[{"secret": {"name": "raw"}, "path": "/raw"}])
    assert machine.environ("web", space.namespace)["TEXT"] == text
    root = Path(f"/proc/{machine.node.leader}/root/proc/{machine.pid('web', space.namespace)}/root")
    assert (root / "raw" / "blob").read_bytes() == raw


def test_an_unprivileged_user_of_the_node_finds_the_value_nowhere(space: Space, machine: Machine) -> None:
    space.kubectl.apply(secret("db", password=VALUE))
    env = [{"name": "PASSWORD", "valueFrom": from_secret("db")}]
    script = 'echo started; [ -n "$PASSWORD" ] && ' + STAY
    mount = {"secret": {"name": "db"}, "path": "/etc/db"}
    space.started("web", command=["/bin/sh", "-c", script], env=env, volumeMounts=[mount])
    unit, pid = space.unit("web"), machine.pid("web", space.namespace)
    looks = [
        ("systemctl", "show", unit),
        ("systemctl", "cat", unit),
        ("systemctl", "show", f"horchestra-start@{_uid(space)}.service"),
        ("busctl", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1/unit/" + _escaped(unit),
         "org.freedesktop.DBus.Properties", "GetAll", "s", ""),
        ("ps", "axeww"),
        ("cat", f"/proc/{pid}/environ", f"/proc/{pid}/cmdline"),
        ("grep", "-rsa", VALUE, "/etc/systemd", "/run", "/var/lib/horchestra", "/etc/horchestra", "/var/log", "/tmp"),
    ]  # fmt: skip
    for look in looks:
        done = machine.nobody(*look)
        assert VALUE not in done.stdout + done.stderr, look
    assert VALUE not in machine.node.journal()


def test_values_at_rest_are_not_in_plain_text_outside_the_applications_own_directory(
    space: Space, machine: Machine
) -> None:
    """The agent's cache of the desired state, units and records hold none; what is sealed is root's alone."""
    space.kubectl.apply(secret("db", password=VALUE))
    space.started("web", env=[{"name": "PASSWORD", "valueFrom": from_secret("db")}])
    found = machine.node.exec(
        "grep", "-rlsa", VALUE, "/etc", "/var/lib/horchestra", "/var/log", check=False
    ).stdout.split()
    assert [path for path in found if not path.startswith(f"/var/lib/horchestra/apps/{_uid(space)}/secrets-")] == []
    for path in found:
        assert machine.node.exec("stat", "-c", "%a %u", path).stdout == "600 0\n"
    data = space.site.controller.data
    holding = [p for p in data.rglob("*") if p.is_file() and VALUE.encode() in p.read_bytes()]
    assert holding == []


def test_a_secret_that_does_not_exist_is_awaited(space: Space) -> None:
    warned = space.run("web", env=[{"name": "PASSWORD", "valueFrom": from_secret("later")}])
    assert 'secret "later" not found' in warned.lower() or "later" in warned
    status = space.phase("web", "Pending", reason="SecretNotFound")
    assert "later" in status["message"]
    space.kubectl.apply(secret("later", password=VALUE))
    space.phase("web", "Running")


def test_a_changed_secret_swaps_files_and_asks_for_a_restart_of_variables(space: Space, machine: Machine) -> None:
    space.kubectl.apply(secret("db", password=OLD))
    mount = {"secret": {"name": "db"}, "path": "/etc/db"}
    space.started("web", env=[{"name": "PASSWORD", "valueFrom": from_secret("db")}], volumeMounts=[mount])
    before = machine.invocations()[space.unit("web")]
    space.kubectl.apply(secret("db", password=NEW))
    until(lambda: machine.inside("web", space.namespace, "/bin/cat", "/etc/db/password") == NEW, "the file is new", 10)
    until(lambda: space.condition("web", "RestartRequired").get("status") == "True", "RestartRequired", 10,
          lambda: space.explain("web"))  # fmt: skip
    assert machine.invocations()[space.unit("web")] == before
    machine.node.exec("systemctl", "restart", space.unit("web"))
    until(lambda: machine.environ("web", space.namespace).get("PASSWORD") == NEW, "the variable after a restart", 15)
    until(lambda: not space.condition("web", "RestartRequired"), "RestartRequired is gone", 15)


def test_a_secret_in_use_is_deleted_with_a_warning_and_keeps_its_last_values_on_the_node(
    space: Space, machine: Machine
) -> None:
    space.kubectl.apply(secret("db", password=VALUE))
    space.started("web", env=[{"name": "PASSWORD", "valueFrom": from_secret("db")}])
    before = machine.invocations()[space.unit("web")]
    done = space.kubectl.run("delete", "secret", "db")
    assert done.returncode == 0
    assert "Warning" in done.stderr
    assert "web" in done.stderr
    until(lambda: space.condition("web", "SecretMissing").get("status") == "True", "SecretMissing", 10,
          lambda: space.explain("web"))  # fmt: skip
    assert machine.invocations()[space.unit("web")] == before
    machine.node.exec("kill", "-KILL", str(machine.pid("web", space.namespace)))
    until(lambda: machine.invocations().get(space.unit("web"), before) != before, "it started again", 10)
    until(lambda: machine.environ("web", space.namespace).get("PASSWORD") == VALUE, "its last value", 5)


def test_a_node_gets_only_the_secrets_that_its_applications_name(space: Space, machine: Machine) -> None:
    space.kubectl.apply(secret("named", password=VALUE), secret("other", password="never-named-" + VALUE))
    space.started("web", env=[{"name": "PASSWORD", "valueFrom": from_secret("named")}])
    space.started("there", node="sav-02")
    for one in space.site.machines.values():
        memory = one.node.exec("cat", "/var/lib/horchestra/desired.json").stdout
        assert "never-named" not in memory
        assert '"other"' not in memory
    assert '"named"' not in space.site.machines["sav-02"].node.exec("cat", "/var/lib/horchestra/desired.json").stdout


def _uid(space: Space) -> str:
    found = space.get("web")
    assert found is not None
    return str(found["metadata"]["uid"])


def _escaped(unit: str) -> str:
    """As systemd names the unit's D-Bus object."""
    return "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):02x}" for c in unit)
