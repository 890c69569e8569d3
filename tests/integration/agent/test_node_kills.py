"""The agent is killed at random moments while applications come, change and go: nothing is missing or left over."""

import random

import pytest

from tests.integration.agent.rig import Rig, application, removal

pytestmark = [pytest.mark.node, pytest.mark.long]
LEFT = (
    "ls -d /var/lib/horchestra/roots/* /var/lib/horchestra/skel/* /var/lib/horchestra/apps/* /run/horchestra/sub/* "
    "/run/horchestra/secrets/* /run/horchestra/log/* /etc/systemd/system/horchestra-app-* "
    "/etc/systemd/system/var-lib-horchestra-roots* 2>/dev/null; grep /var/lib/horchestra/roots/ /proc/self/mountinfo; "
    "systemctl list-units --all --no-legend --plain 'horchestra-app-*' 'horchestra-start@*'; true"
)


def left(rig: Rig) -> list[str]:
    return [line for line in rig.node.exec("sh", "-c", LEFT).stdout.splitlines() if ".control" not in line]


def test_twenty_kills_during_updates_leave_nothing_missing_and_nothing_over(rig: Rig) -> None:
    moments = random.Random(7)
    rig.node.exec("sh", "-c", "mkdir -p /etc/systemd/system/driver.service.d; printf '[Service]\\nRestart=always\\n"
                  "RestartSec=0\\nStartLimitIntervalSec=0\\n' >/etc/systemd/system/driver.service.d/restart.conf; "
                  "systemctl daemon-reload")  # fmt: skip
    names = ("a", "b")
    for generation in range(1, 21):
        apps = [
            application(name, f"docker.io/lab/{'no-user' if generation % 2 else 'lines'}:1", generation=generation,
                        env={"TURN": str(generation)}, terminationGracePeriodSeconds=1)
            for name in names
        ]  # fmt: skip
        rig.apply(*apps)
        rig.node.exec("sleep", f"{moments.uniform(0, 1.2):.2f}")
        rig.node.exec("systemctl", "kill", "--kill-whom=main", "-s", "KILL", "driver", check=False)
    for name in names:
        rig.ready(name, 60, 20)
        assert rig.environ(f"horchestra-app-{name}.service")["TURN"] == "20"
    assert int(rig.show("driver", "NRestarts")) >= 15
    rig.apply(removals=[removal(app) for app in apps])
    rig.until(lambda: {app["metadata"]["uid"] for app in apps} <= rig.removed(), "remove", 30)
    rig.node.exec("systemctl", "restart", "driver")
    rig.until(lambda: not left(rig), "leave nothing", 20)
