"""An application becomes a live unit, is told truthfully, and stays."""

import base64
import json

import pytest

from tests.integration.agent.rig import Rig, application, volume

pytestmark = pytest.mark.node


def test_an_image_becomes_a_running_unit_with_status_and_logs(rig: Rig) -> None:
    app = application("first", "docker.io/lab/lines:1", env={"LINES": "3"})
    rig.apply(app)
    status = rig.phase("first", "Running", 30)
    assert rig.show("horchestra-app-first.service", "ActiveState") == "active"
    assert status["imageDigest"].startswith("sha256:")
    assert status["node"] == "sav-01"
    rig.ready("first")
    lines = rig.log(app).decode().splitlines()
    assert lines[:3] == ["line 1", "line 2", "line 3"]
    assert [reason for reason, _ in rig.events("first")][:4] == ["Pulling", "Pulled", "Created", "Started"]


def test_the_example_runs_as_it_is_written(rig: Rig) -> None:
    app = application(
        "postgres-18",
        "docker.io/library/postgres:18-alpine",
        env={"POSTGRES_HOST_AUTH_METHOD": "trust", "PGDATA": "/var/lib/postgresql/data"},
        ports=[{"name": "postgres", "port": 5432}],
        resources={"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
        volumeMounts=[
            {"pv": "pg-data", "path": "/var/lib/postgresql"},
            {"tmpfs": {"size": "64Mi"}, "path": "/run/postgresql"},
        ],
    )
    rig.apply(app, volume("pg-data"))
    rig.ready("postgres-18", 60)
    connect = "import socket; socket.create_connection(('127.0.0.1', 5432), 3)"
    rig.until(lambda: rig.node.exec("python3", "-c", connect, check=False).returncode == 0, "serve", 30)
    assert b"ready to accept connections" in rig.log(app)


def test_a_node_with_everything_comes_back_by_itself_and_the_agent_changes_nothing(rig: Rig) -> None:
    rig.stop_agent()
    rig.node.power_cut()
    rig.node.start()
    rig.node.wait_ready()
    units = ("horchestra-app-postgres-18.service", "horchestra-app-first.service")
    rig.until(lambda: all(rig.pid(unit) for unit in units), "start at boot", 15)
    before = [rig.show(unit, "InvocationID") for unit in units]
    counts = {name: rig.status(name)["restartCount"] for name in ("postgres-18", "first")}
    rig.start_agent()
    rig.ready("postgres-18")
    rig.ready("first")
    assert [rig.show(unit, "InvocationID") for unit in units] == before
    assert {name: rig.status(name)["restartCount"] - 1 for name in counts} == counts


def test_the_node_tells_what_it_is_and_has(rig: Rig) -> None:
    [told, *_] = [json.loads(base64.b64decode(m["nodeJson"])) for m in rig.messages("node") if "nodeJson" in m]
    assert told["nodeInfo"]["containerRuntimeVersion"] == "systemd://252"
    assert told["nodeInfo"]["machineID"] == rig.node.exec("cat", "/etc/machine-id").stdout.strip()
    assert {a["address"] for a in told["addresses"]} == {rig.node.address, "sav-01"}
    assert int(told["capacity"]["memory"]) > 1 << 28
    states = {c["type"]: c["status"] for c in told["conditions"]}
    assert states == {"LimitsEnforced": "True", "SecretsSealed": "True"}
