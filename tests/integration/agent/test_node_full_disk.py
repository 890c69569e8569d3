"""A disk that is full: it is said, what runs goes on, and what waits goes on when there is room again."""

import pytest

from tests.integration.agent.rig import Rig, application
from tests.lab.nodes import Nodes
from tests.lab.registry import Registry

pytestmark = pytest.mark.node
STATE = "/var/lib/horchestra"
UNIT = "horchestra-app-kept.service"


def shell(rig: Rig, script: str) -> str:
    return rig.node.exec("sh", "-c", script).stdout


def test_a_full_disk_is_said_and_what_runs_goes_on(lab_nodes: Nodes, registry: Registry) -> None:
    rig = Rig(lab_nodes, registry)
    try:
        shell(rig, f"mkdir -p {STATE}; mount -t tmpfs -o size=290m small {STATE}")
        rig.start_agent()
        first = application("kept", "docker.io/lab/no-user:1")
        rig.apply(first)
        rig.ready("kept", 40)
        pid = rig.pid(UNIT)
        shell(rig, f"cat /dev/zero >{STATE}/filler 2>/dev/null || true")
        rig.node.exec("systemctl", "restart", "driver")
        rig.until(lambda: rig.status("kept").get("phase") == "Running", "see it run", 20)
        shell(rig, f"truncate -s 200m {STATE}/filler")
        second = application("second", "docker.io/lab/lines:1")
        rig.apply(first, second)
        rig.until(lambda: rig.status("second").get("reason") == "DiskFull", "say it", 20)
        assert rig.pid(UNIT) == pid
        shell(rig, f"rm {STATE}/filler")
        rig.ready("second", 40)
        assert rig.pid(UNIT) == pid
    finally:
        rig.close()
