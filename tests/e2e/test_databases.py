"""The same path on PostgreSQL, and what happens when the database goes away."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.controller import Controller
from tests.e2e.machine import joined, reports
from tests.e2e.site import Site, Space, secret, volume
from tests.e2e.waiting import until
from tests.lab.command import run
from tests.lab.network import LabNetwork
from tests.lab.nodes import Nodes
from tests.lab.paths import PROJECT
from tests.lab.registry import Registry
from tests.lab.servers import PostgresServer

pytestmark = pytest.mark.node

NODE = "pg-01"
VALUE = "s3cret-value-in-a-database"
EXAMPLE = PROJECT / "examples" / "postgres.yaml"


@pytest.fixture(scope="module")
def own(
    lab_network: LabNetwork, lab_nodes: Nodes, registry: Registry, postgres_server: PostgresServer
) -> Iterator[Site]:
    """A controller on PostgreSQL with one node."""
    controller = Controller(
        lab_network.estate.directory / "on-postgres",
        lab_network.address,
        api_port=7543,
        agent_port=7544,
        database=postgres_server.create_database("e2e"),
    )
    controller.start()
    machines = joined(lab_nodes, controller, registry.endpoint, (NODE,))
    yield Site(controller, machines, registry)
    machines[0].remove()
    controller.stop()


def test_the_example_runs_and_behaves_on_postgresql(own: Site, tmp_path: Path) -> None:
    space, machine = Space(own, "default"), own.machines[NODE]
    manifest = tmp_path / "postgres.yaml"
    manifest.write_text(EXAMPLE.read_text().replace("sav-01", NODE))
    space.kubectl("apply", "-f", manifest)
    space.phase("postgres-18", "Running", 60)
    words = ("psql", "-h", machine.address, "-U", "postgres", "-At", "-c", "select 1")
    until(lambda: run(*words, check=False).stdout == "1\n", "psql answers", 30, lambda: space.explain("postgres-18"))
    assert [line.split()[-1] for line in space.kubectl("apply", "-f", manifest).splitlines()] == ["unchanged"] * 2
    assert space.kubectl.run("diff", "-f", manifest).returncode == 0
    assert "ready to accept connections" in space.log("postgres-18")
    uid = str(space.kubectl.get("pv", "pg-data")["metadata"]["uid"])
    space.kubectl("delete", "-f", manifest, "--timeout=40s", timeout=50)
    assert (machine.volume(uid) / "data" / "PG_VERSION").exists()


def test_a_life_from_apply_to_delete_on_postgresql(own: Site) -> None:
    space, machine = own.space("life"), own.machines[NODE]
    space.kubectl.apply(volume("life-data", NODE), secret("db", password=VALUE))
    env = [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}]
    space.started("web", node=NODE, env=env, volumeMounts=[{"pv": "life-data", "path": "/data"}])
    assert machine.environ("web", "life")["PASSWORD"] == VALUE
    space.kubectl("patch", "app", "web", "--type=merge", "-p", '{"spec": {"image": "docker.io/lab/named-user:1"}}')
    space.ready("web")
    until(lambda: "Started" in dict(space.events("web")), "an Event", 10)
    space.kubectl("delete", "namespace", "life", "--timeout=40s", timeout=50)
    assert not machine.runs("web", "life")


def test_secrets_are_not_in_the_database_in_plain_text(own: Site, postgres_server: PostgresServer) -> None:
    space = own.space("at-rest")
    space.kubectl.apply(secret("db", password=VALUE))
    dump = run("pg_dump", "--data-only", "--inserts", postgres_server.url("e2e"), timeout=30).stdout
    assert "at-rest" in dump
    assert VALUE not in dump
    assert base64.b64encode(VALUE.encode()).decode() not in dump


def test_a_restarted_controller_and_a_lost_database_restart_nothing(own: Site, postgres_server: PostgresServer) -> None:
    space, machine = own.space("faults"), own.machines[NODE]
    space.started("web", node=NODE)
    before = machine.invocations()
    own.controller.kill()
    own.controller.start()
    reports(machine, own.controller)
    assert space.status("web")["phase"] == "Running"
    postgres_server.crash()
    assert space.kubectl.run("create", "configmap", "while-away", "--request-timeout=5s").returncode == 1
    assert machine.invocations() == before
    postgres_server.start()
    until(lambda: space.kubectl.run("create", "configmap", "after").returncode == 0, "writes are taken again", 30,
          lambda: own.controller.log.read_text()[-3000:])  # fmt: skip
    space.started("after", node=NODE)
    assert {unit: machine.invocations().get(unit) for unit in before} == before
