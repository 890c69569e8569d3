"""systemd is made to read all its units again only for what it knows in another form."""

import pytest

from tests.integration.agent.rig import Rig, application

pytestmark = pytest.mark.node


def test_a_new_application_starts_without_a_reload_of_all_units(rig: Rig) -> None:
    first = application("first", "docker.io/lab/no-user:1")
    rig.apply(first)
    rig.phase("first", "Running", 30)
    before = _reloads(rig)
    many = [application(f"more-{number}", "docker.io/lab/no-user:1") for number in range(8)]
    rig.apply(first, *many)
    for app in many:
        rig.phase(app["metadata"]["name"], "Running", 30)
    assert _reloads(rig) == before
    for app in many:
        unit = f"horchestra-app-{app['metadata']['name']}.service"
        assert rig.show(unit, "NeedDaemonReload") == "no"
        assert rig.inside(unit, "/bin/busybox", "echo", "its root is mounted") == "its root is mounted\n"


def test_a_changed_unit_is_read_again(rig: Rig) -> None:
    rig.apply(application("web", "docker.io/lab/no-user:1"))
    rig.phase("web", "Running", 30)
    before = _reloads(rig)
    rig.apply(application("web", "docker.io/lab/no-user:1", generation=2, terminationGracePeriodSeconds=7))
    rig.ready("web", generation=2)
    assert _reloads(rig) > before
    assert rig.show("horchestra-app-web.service", "TimeoutStopUSec") == "7s"


def _reloads(rig: Rig) -> int:
    text = rig.node.exec("journalctl", "_PID=1", "-o", "cat", "--no-pager", "-q", "-b").stdout
    return text.splitlines().count("Reloading.")
