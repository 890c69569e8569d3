"""What somebody kills, stops or edits on the node is put right; what runs beside it is not touched."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.agent.rig import Rig, application
from tests.lab.command import CommandError

pytestmark = pytest.mark.node
UNIT = "horchestra-app-web.service"
BESIDE = "horchestra-app-beside.service"
FILE = f"/etc/systemd/system/{UNIT}"


@pytest.fixture(autouse=True)
def two(rig: Rig) -> Iterator[None]:
    """Two applications; the one beside must come out of each test with the process it had."""
    rig.apply(application("web", "docker.io/lab/no-user:1"), application("beside", "docker.io/lab/no-user:1"))
    rig.phase("web", "Running", 30)
    rig.phase("beside", "Running", 30)
    pid = rig.pid(BESIDE)
    yield
    assert rig.pid(BESIDE) == pid


def invocation(rig: Rig) -> str:
    return rig.show(UNIT, "InvocationID")


def test_a_killed_process_is_back_at_once_and_counted(rig: Rig) -> None:
    before, count = rig.pid(UNIT), rig.status("web")["restartCount"]
    rig.node.exec("kill", "-9", str(before))
    rig.until(lambda: rig.pid(UNIT) not in (0, before), "restart", 3)
    rig.until(lambda: rig.status("web")["restartCount"] == count + 1, "count", 3)
    rig.phase("web", "Running", 3)
    assert "Killed" in [reason for reason, _ in rig.events("web")]


def test_a_unit_stopped_by_hand_is_started_again(rig: Rig) -> None:
    rig.node.exec("systemctl", "stop", UNIT)
    rig.until(lambda: rig.pid(UNIT), "start again", 12)
    rig.phase("web", "Running", 3)


def test_an_edited_unit_file_is_rewritten_without_a_restart(rig: Rig) -> None:
    before, text = invocation(rig), rig.node.exec("cat", FILE).stdout
    rig.node.exec("sed", "-i", "s/^TasksMax=.*/TasksMax=7/", FILE)
    rig.node.exec("systemctl", "daemon-reload")
    rig.until(lambda: rig.node.exec("cat", FILE).stdout == text, "rewrite", 12)
    rig.until(lambda: rig.show(UNIT, "TasksMax") == "8192", "reload", 3)
    assert invocation(rig) == before


def test_a_process_started_from_an_edited_file_is_started_anew(rig: Rig) -> None:
    text = rig.node.exec("cat", FILE).stdout
    edit = f"sed -i 's/^Environment=\"PATH=.*/&\\nEnvironment=EVIL=1/' {FILE}"
    rig.node.exec("sh", "-c", f"{edit}; systemctl daemon-reload; systemctl restart {UNIT}")
    rig.until(lambda: rig.node.exec("cat", FILE).stdout == text, "rewrite", 12)

    def runs_without() -> bool:
        try:
            return bool(rig.pid(UNIT)) and "EVIL" not in rig.environ(UNIT)
        except CommandError:  # it ended between the two questions
            return False

    rig.until(runs_without, "restart without the edit", 12)


def test_a_drop_in_made_by_hand_goes_away(rig: Rig) -> None:
    before = invocation(rig)
    command = f"mkdir {FILE}.d; printf '[Service]\\nTasksMax=9\\n' > {FILE}.d/override.conf; systemctl daemon-reload"
    rig.node.exec("sh", "-c", command)
    rig.until(lambda: rig.show(UNIT, "TasksMax") == "8192", "drop it", 12)
    assert invocation(rig) == before


@pytest.mark.parametrize("damage", [f"rm {FILE}", f"systemctl disable {UNIT}", f"ln -sf /dev/null {FILE}"])
def test_a_deleted_disabled_or_masked_unit_is_whole_again(rig: Rig, damage: str) -> None:
    before, text = invocation(rig), rig.node.exec("cat", FILE).stdout
    rig.node.exec("sh", "-c", f"{damage}; systemctl daemon-reload")
    link = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
    check = f"test -f {FILE} -a ! -L {FILE} -a -L {link} && cat {FILE}"
    rig.until(lambda: rig.node.exec("sh", "-c", check, check=False).stdout == text, "repair", 12)
    rig.until(lambda: rig.show(UNIT, "LoadState") == "loaded", "load", 5)
    assert invocation(rig) == before


def test_a_lost_root_mount_is_mounted_again(rig: Rig) -> None:
    root = rig.show(UNIT, "RootDirectory")
    rig.node.exec("umount", "-l", root)
    rig.until(lambda: rig.node.exec("findmnt", "-n", root, check=False).stdout, "mount again", 12)
    assert rig.pid(UNIT)


def test_an_agent_restart_keeps_every_process(rig: Rig) -> None:
    before = invocation(rig)
    rig.stop_agent()
    rig.start_agent()
    rig.phase("web", "Running", 5)
    rig.ready("web")
    assert invocation(rig) == before


def test_an_upgrade_with_another_rendering_keeps_every_process(rig: Rig) -> None:
    """An older agent wrote another text; the new one rewrites it and restarts nothing, not even what began anew."""
    text = rig.node.exec("cat", FILE).stdout
    rig.stop_agent()
    older = text.replace("KeyringMode=private\n", "")
    assert older != text
    rig.node.write(FILE, older)
    [path] = (p for p in Path(rig.node.state, "apps").glob("*/record.json") if '"name":"web"' in p.read_text())
    record = json.loads(path.read_text())
    record["written"][UNIT] = hashlib.sha256(older.encode()).hexdigest()
    path.write_text(json.dumps(record))
    rig.node.exec("systemctl", "daemon-reload")
    rig.node.exec("systemctl", "restart", UNIT)
    before = invocation(rig)
    rig.start_agent()
    rig.until(lambda: rig.node.exec("cat", FILE).stdout == text, "rewrite", 12)
    rig.ready("web")
    assert invocation(rig) == before


def test_systemd_reexecuted_loses_nothing(rig: Rig) -> None:
    before = rig.pid(UNIT)
    rig.node.exec("systemctl", "daemon-reexec")
    rig.node.exec("kill", "-9", str(before))
    rig.until(lambda: rig.pid(UNIT) not in (0, before), "restart", 5)
    rig.node.exec("systemctl", "stop", UNIT)
    rig.until(lambda: rig.pid(UNIT), "start again", 12)
