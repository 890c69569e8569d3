"""What was broken by hand on a node is put right within one reconcile interval, and nobody else notices."""

from collections.abc import Iterator

import pytest

from tests.e2e.machine import Machine
from tests.e2e.site import Space
from tests.e2e.waiting import throughout, until

pytestmark = pytest.mark.node

INTERVAL = 12
"""Seconds: the longest time until the agent looks by itself, and a little more."""


@pytest.fixture
def web(space: Space, machine: Machine) -> Iterator[Space]:
    """An application `web` beside an application `other` that must not notice anything."""
    space.run("other", "lab/lines:1")
    space.started("web")
    space.phase("other", "Running")
    others = {unit: ids for unit, ids in machine.invocations().items() if unit != space.unit("web")}
    yield space
    now = machine.invocations()
    assert {unit: now.get(unit) for unit in others} == others


def test_a_killed_process_is_started_at_once_and_counted(web: Space, machine: Machine) -> None:
    pid = machine.pid("web", web.namespace)
    machine.node.exec("kill", "-KILL", str(pid))
    until(lambda: machine.pid("web", web.namespace) not in (0, pid), "another process", 2)
    until(lambda: web.status("web")["restartCount"] == 1, "the restart is counted", 5, lambda: web.explain("web"))
    assert "Killed" in dict(web.events("web"))
    web.phase("web", "Running")


def test_a_stopped_unit_is_started_again(web: Space, machine: Machine) -> None:
    machine.node.exec("systemctl", "stop", web.unit("web"))
    until(lambda: machine.runs("web", web.namespace), "it runs again", INTERVAL)
    web.phase("web", "Running")


def test_a_disabled_and_masked_unit_is_started_again(web: Space, machine: Machine) -> None:
    machine.node.exec("systemctl", "disable", "--now", "--quiet", web.unit("web"))
    until(lambda: machine.runs("web", web.namespace) and _enabled(machine, web), "runs and enabled", INTERVAL)


def test_an_edited_unit_file_is_rewritten_without_a_restart(web: Space, machine: Machine) -> None:
    path = machine.node.path(f"/etc/systemd/system/{web.unit('web')}")
    text, before = path.read_text(), machine.invocations()[web.unit("web")]
    path.write_text(text.replace("[Service]", "[Service]\nEnvironment=ADDED=by-hand"))
    until(lambda: path.read_text() == text, "the file as it was", INTERVAL)
    assert machine.invocations()[web.unit("web")] == before
    until(lambda: machine.show(web.unit("web"), "NeedDaemonReload") == ["no"], "reloaded", 5)


def test_a_process_that_was_started_from_an_edited_file_is_restarted_from_the_right_one(
    web: Space, machine: Machine
) -> None:
    path = machine.node.path(f"/etc/systemd/system/{web.unit('web')}")
    text = path.read_text()
    path.write_text(text.replace("[Service]", "[Service]\nEnvironment=ADDED=by-hand"))
    script = f"systemctl daemon-reload && systemctl restart {web.unit('web')}"
    machine.node.exec("sh", "-c", script)
    until(lambda: path.read_text() == text, "the file as it was", INTERVAL)
    until(lambda: machine.runs("web", web.namespace) and "ADDED" not in machine.environ("web", web.namespace),
          "it runs as wanted", INTERVAL, lambda: web.explain("web"))  # fmt: skip


def test_a_deleted_unit_file_is_written_again_without_a_restart(web: Space, machine: Machine) -> None:
    path = machine.node.path(f"/etc/systemd/system/{web.unit('web')}")
    text, before = path.read_text(), machine.invocations()[web.unit("web")]
    machine.node.exec("rm", f"/etc/systemd/system/{web.unit('web')}")
    until(lambda: path.exists() and path.read_text() == text, "the file is back", INTERVAL)
    assert machine.invocations()[web.unit("web")] == before


def test_a_drop_in_is_removed(web: Space, machine: Machine) -> None:
    machine.node.exec("systemctl", "set-property", web.unit("web"), "MemoryMax=32M")
    until(lambda: machine.show(web.unit("web"), "MemoryMax", "DropInPaths") == ["infinity", ""], "no drop-in", INTERVAL)


def test_a_lost_mount_is_mounted_again(web: Space, machine: Machine) -> None:
    [root] = machine.show(web.unit("web"), "RootDirectory")
    machine.node.exec("umount", "--lazy", root)
    mounted = f" {root} "
    until(lambda: mounted in machine.node.exec("cat", "/proc/mounts").stdout and machine.runs("web", web.namespace),
          "mounted, and it runs", INTERVAL, lambda: web.explain("web"))  # fmt: skip


def test_a_stopped_mount_unit_is_started_again(web: Space, machine: Machine) -> None:
    [root] = machine.show(web.unit("web"), "RootDirectory")
    # The agent may start it again before the stop is done, which cancels the stop.
    machine.node.exec("systemctl", "stop", root.lstrip("/").replace("/", "-") + ".mount", check=False)
    until(lambda: machine.runs("web", web.namespace), "it runs again", INTERVAL, lambda: web.explain("web"))


def test_what_is_right_is_left_alone(web: Space, machine: Machine) -> None:
    before = machine.invocations()
    version = web.kubectl.get("app", "web")["metadata"]["resourceVersion"]
    web.ready("web")
    throughout(lambda: machine.invocations() == before, "every process as it was", INTERVAL)
    settled = web.kubectl.get("app", "web")["metadata"]["resourceVersion"]
    assert int(settled) >= int(version)


def _enabled(machine: Machine, space: Space) -> bool:
    done = machine.node.exec("systemctl", "is-enabled", space.unit("web"), check=False)
    return done.stdout.strip() == "enabled"
