"""The log pump and journald die while applications print: nobody is told, nobody is held up, no line is lost."""

import pytest

from tests.integration.agent.rig import Rig, application

pytestmark = pytest.mark.node
PUMP = "horchestra-logs.service"
BY_TURNS = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo line $i || : >/tmp/broken; sleep 0.01; done; ls /tmp; "


@pytest.mark.parametrize("unit", [PUMP, "systemd-journald.service"])
def test_a_death_while_applications_print_loses_and_breaks_nothing(rig: Rig, unit: str) -> None:
    name = unit.partition(".")[0]
    app = application(name, "docker.io/lab/no-user:1", command=["/bin/sh", "-c", BY_TURNS + "exec sleep 1000"])
    rig.apply(app)
    rig.until(lambda: b"line 20\n" in rig.log(app), "print", 30)
    for _ in range(3):
        before = rig.pid(unit)
        rig.node.exec("kill", "-KILL", str(before))
        rig.until(lambda: rig.pid(unit) not in (0, before), "come back", 10)  # noqa: B023
    rig.until(lambda: rig.log(app).count(b"line 300\n") == 1, "print to the end", 20)
    lines = rig.log(app).decode().splitlines()
    assert "broken" not in lines
    missing = {f"line {i}" for i in range(1, 301)} - set(lines)
    assert len(missing) <= (3 if unit == PUMP else 0), missing


def test_systemd_keeps_the_fifos_and_watches_the_pump(rig: Rig) -> None:
    rig.apply(application("kept", "docker.io/lab/no-user:1"))
    rig.ready("kept", 30)
    rig.node.exec("systemctl", "restart", PUMP)
    rig.until(lambda: int(rig.show(PUMP, "NFileDescriptorStore")) > 0, "keep them", 5)
    assert rig.show(PUMP, "WatchdogUSec") == "30s"
