"""The example that the README shows: it runs, its data survives, and the everyday commands on its file behave."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubectl import Kubectl, newest, version_1_32
from tests.e2e.machine import Machine
from tests.e2e.site import Site, Space
from tests.e2e.waiting import until
from tests.lab.command import run
from tests.lab.paths import PROJECT

pytestmark = pytest.mark.node

EXAMPLE = PROJECT / "examples" / "postgres.yaml"
NAME, VOLUME = "postgres-18", "pg-data"


class Postgres:
    """The example's application and the database in it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.machine: Machine = site.machines["sav-01"]
        self.space = Space(site, "default")
        self.kubectl = self.space.kubectl

    def apply(self) -> str:
        return self.kubectl("apply", "-f", EXAMPLE)

    def sql(self, text: str) -> str | None:
        """What psql prints, None when the database does not answer."""
        words = ("-h", self.machine.address, "-U", "postgres", "--no-psqlrc", "-At", "-c", text)
        done = run("psql", *words, check=False, env={"PGCONNECT_TIMEOUT": "2", "PATH": "/usr/bin:/bin"})
        return done.stdout.strip() if done.returncode == 0 else None

    def answers(self, seconds: float = 30) -> None:
        until(lambda: self.sql("select 1") == "1", "psql answers", seconds, lambda: self.space.explain(NAME))

    def write(self, row: str) -> None:
        assert self.sql("create table if not exists kept (row text)") is not None
        assert self.sql(f"insert into kept values ('{row}')") is not None

    def has(self, row: str) -> bool:
        return self.sql(f"select count(*) from kept where row = '{row}'") == "1"

    @property
    def volume_uid(self) -> str:
        found = self.site.controller.get("pv", VOLUME)
        assert found is not None
        return str(found["metadata"]["uid"])

    def delete(self) -> None:
        self.kubectl("delete", "-f", EXAMPLE, "--ignore-not-found", "--timeout=40s", timeout=50)


@pytest.fixture
def postgres(site: Site) -> Postgres:
    """The example applied and answering; what a test before broke is applied again."""
    made = Postgres(site)
    made.apply()
    made.space.phase(NAME, "Running", 60)
    made.answers()
    return made


@pytest.fixture(scope="package", autouse=True)
def _removed_at_the_end(site: Site) -> Iterator[None]:
    yield
    site.controller.kubectl()("delete", "-f", EXAMPLE, "--ignore-not-found", "--wait=false")


def test_its_database_answers_on_the_address_of_the_node(postgres: Postgres) -> None:
    status = postgres.space.status(NAME)
    assert status["addresses"] == [postgres.machine.address]
    assert "PostgreSQL" in (postgres.sql("select version()") or "")


def test_a_row_survives_the_death_of_the_process(postgres: Postgres) -> None:
    postgres.write("before kill")
    before = postgres.space.status(NAME)["restartCount"]
    postgres.machine.node.exec("kill", "-KILL", str(postgres.machine.pid(NAME)))
    until(lambda: postgres.space.status(NAME)["restartCount"] == before + 1, "the restart is counted")
    postgres.answers()
    assert postgres.has("before kill")


def test_a_row_survives_systemctl_stop(postgres: Postgres) -> None:
    postgres.write("before stop")
    postgres.machine.node.exec("systemctl", "stop", f"horchestra-app-{NAME}")
    postgres.answers()
    assert postgres.has("before stop")
    postgres.space.phase(NAME, "Running")


def test_a_row_survives_a_reboot_of_the_node(postgres: Postgres) -> None:
    postgres.write("before reboot")
    boot = _boot(postgres.site)
    postgres.machine.node.reboot()
    until(lambda: _boot(postgres.site) != boot, "the node reports its new boot", 30, postgres.machine.agent_log)
    postgres.answers()
    assert postgres.has("before reboot")


def test_after_a_power_cut_systemd_alone_brings_it_back(postgres: Postgres) -> None:
    """Neither agent nor controller is there until the database has answered."""
    postgres.write("before power cut")
    machine, controller = postgres.machine, postgres.site.controller
    machine.node.exec("systemctl", "disable", "--now", "horchestra-agent")
    controller.stop()
    try:
        machine.node.power_cut()
        machine.node.boot()
        postgres.answers()
        assert postgres.has("before power cut")
        assert machine.show("horchestra-agent.service", "ActiveState") == ["inactive"]
        running = machine.invocations()
    finally:
        controller.start()
        machine.start_agent()
    until(lambda: _connected(postgres.site), "the node is back", 20, machine.agent_log)
    postgres.space.phase(NAME, "Running")
    assert machine.invocations() == running


def test_a_row_survives_deletion_and_recreation_of_the_application(postgres: Postgres) -> None:
    postgres.write("before delete")
    volume = postgres.volume_uid
    postgres.kubectl("delete", "app", NAME, "--timeout=40s", timeout=50)
    assert postgres.sql("select 1") is None
    assert postgres.machine.volume(volume).is_dir()
    postgres.apply()
    postgres.answers()
    assert postgres.has("before delete")
    assert postgres.volume_uid == volume


@pytest.mark.parametrize("binary", [version_1_32, newest], ids=["kubectl-1.32", "kubectl-newest"])
def test_a_second_apply_changes_nothing_and_sends_nothing(postgres: Postgres, binary: type) -> None:
    kubectl = Kubectl(binary(), postgres.kubectl.kubeconfig)
    before = [_version(postgres, "app", NAME), _version(postgres, "pv", VOLUME)]
    digest = _desired(postgres.machine)
    assert sorted(kubectl("apply", "-f", EXAMPLE).splitlines()) == [
        f"application.orch.ks-tool.dev/{NAME} unchanged",
        f"persistentvolume.orch.ks-tool.dev/{VOLUME} unchanged",
    ]
    assert [_version(postgres, "app", NAME), _version(postgres, "pv", VOLUME)] == before
    assert _desired(postgres.machine) == digest


@pytest.mark.parametrize("binary", [version_1_32, newest], ids=["kubectl-1.32", "kubectl-newest"])
def test_diff_of_what_is_applied_is_empty(postgres: Postgres, binary: type) -> None:
    done = Kubectl(binary(), postgres.kubectl.kubeconfig).run("diff", "-f", EXAMPLE)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("binary", [version_1_32, newest], ids=["kubectl-1.32", "kubectl-newest"])
def test_deleting_the_file_in_its_order_ends_and_keeps_the_data(postgres: Postgres, binary: type) -> None:
    volume = postgres.volume_uid
    Kubectl(binary(), postgres.kubectl.kubeconfig)("delete", "-f", EXAMPLE, "--timeout=40s", timeout=50)
    assert postgres.site.controller.get("app", NAME, "default") is None
    assert postgres.site.controller.get("pv", VOLUME) is None
    assert (postgres.machine.volume(volume) / "data" / "PG_VERSION").exists()
    listed = (postgres.site.controller.get("node", "sav-01") or {})["status"]["volumes"]
    assert volume in {v["uid"] for v in listed}


def test_a_dry_run_stores_nothing(site: Site) -> None:
    postgres = Postgres(site)
    postgres.delete()
    for words in (("apply", "--dry-run=server"), ("create", "--dry-run=server")):
        postgres.kubectl(*words, "-f", EXAMPLE)
    assert site.controller.get("app", NAME, "default") is None
    assert postgres.kubectl.run("diff", "-f", EXAMPLE).returncode == 1


def test_a_recreated_volume_starts_empty_and_adopting_takes_the_old_data_back(
    postgres: Postgres, tmp_path: Path
) -> None:
    postgres.write("before the volume went")
    old = postgres.volume_uid
    postgres.delete()
    warned = postgres.kubectl.run("apply", "-f", EXAMPLE)
    assert "Warning" in warned.stderr
    assert old in warned.stderr
    postgres.answers(60)
    assert postgres.volume_uid != old
    assert not postgres.has("before the volume went")
    previous = next(
        c for c in postgres.kubectl.get("pv", VOLUME)["status"]["conditions"] if c["type"] == "PreviousData"
    )
    assert previous["status"] == "True"
    assert "spec.adopt" in previous["message"]

    postgres.delete()
    adopting = tmp_path / "adopting.yaml"
    adopting.write_text(EXAMPLE.read_text().replace("  size: 10Gi\n", f"  size: 10Gi\n  adopt: {old}\n"))
    postgres.kubectl("apply", "-f", adopting)
    postgres.answers()
    assert postgres.has("before the volume went")
    postgres.kubectl("delete", "-f", adopting, "--timeout=40s", timeout=50)


def test_a_signal_that_stops_postgres_cleanly_is_the_one_of_the_image(postgres: Postgres) -> None:
    [number] = postgres.machine.show(f"horchestra-app-{NAME}.service", "KillSignal")
    assert int(number) == signal.SIGINT


def _boot(site: Site) -> str:
    node = site.controller.get("node", "sav-01") or {}
    return str(node["status"]["nodeInfo"]["bootID"])


def _connected(site: Site) -> bool:
    node = site.controller.get("node", "sav-01") or {}
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])


def _version(postgres: Postgres, kind: str, name: str) -> str:
    found = postgres.site.controller.get(kind, name, "default" if kind == "app" else "")
    assert found is not None
    return str(found["metadata"]["resourceVersion"])


def _desired(machine: Machine) -> tuple[int, int]:
    """Size and time of the desired state on the node's disk: a push would have written it."""
    found = (machine.node.state / "desired.json").stat()
    return found.st_size, found.st_mtime_ns
