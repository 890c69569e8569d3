"""What an Application may and may not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from horchestra.kinds import builtin
from horchestra.kinds.application import Application

EXAMPLES = Path(__file__).parents[3] / "examples"


def application(**spec: Any) -> Application:
    return Application.model_validate({"metadata": {"name": "web"}, "spec": {"image": "web:1", **spec}})


def fields(app: Application) -> list[str]:
    return [c.field for c in app.validate_object()]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_example_is_valid(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        cls = builtin().kind(document["apiVersion"], document["kind"])
        cls.prepare(document)
        assert cls.model_validate(document).validate_object() == []


def test_the_map_form_of_env_keeps_newlines() -> None:
    app = application(env={"TEXT": "a\nExecStartPre=/bin/false\n"})
    assert fields(app) == []
    assert app.spec.environment()[0].value == "a\nExecStartPre=/bin/false\n"


def test_nul_cannot_be_in_env_or_arguments() -> None:
    assert fields(application(env={"A": "x\0y"}, args=["a", "\0"])) == ["spec.args[1]", "spec.env[A].value"]


def test_a_variable_takes_its_value_from_one_place() -> None:
    both = {"secretKeyRef": {"name": "a", "key": "b"}, "configMapKeyRef": {"name": "a", "key": "b"}}
    assert fields(application(env=[{"name": "X", "valueFrom": both}])) == ["spec.env[0].valueFrom"]
    one = {"secretKeyRef": {"name": "a", "key": "b"}}
    assert fields(application(env=[{"name": "X", "value": "1", "valueFrom": one}])) == ["spec.env[0].valueFrom"]


def test_a_number_in_env_is_refused_not_guessed() -> None:
    with pytest.raises(ValidationError):
        application(env={"PORT": 8080})


def test_a_request_above_its_limit_is_refused() -> None:
    app = application(resources={"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}})
    (cause,) = app.validate_object()
    assert cause.field == "spec.resources.requests.memory"
    assert "2Gi must be less than or equal to memory limit of 1Gi" in cause.message


def test_all_faults_are_reported_at_once() -> None:
    app = application(
        ports=[{"port": 80}, {"port": 80}],
        volumeMounts=[{"path": "data", "pv": "a"}, {"path": "/proc/1", "pv": "a", "tmpfs": {"size": "1Mi"}}],
        securityContext={"runAsNonRoot": True, "runAsUser": 0, "capabilities": {"drop": ["net-raw"]}},
    )
    assert fields(app) == [
        "spec.ports[1]",
        "spec.securityContext.capabilities.drop[0]",
        "spec.securityContext.runAsUser",
        "spec.volumeMounts[0].path",
        "spec.volumeMounts[1]",
        "spec.volumeMounts[1].path",
    ]


@pytest.mark.parametrize("path", ["/", "/a/../b", "/a//b", "/a/", "relative", "/dev/shm", "/a\0b"])
def test_a_mount_path_is_absolute_and_not_the_systems(path: str) -> None:
    assert fields(application(volumeMounts=[{"path": path, "tmpfs": {"size": "1Mi"}}])) == ["spec.volumeMounts[0].path"]


def test_references_name_everything_the_application_needs() -> None:
    (_, document) = yaml.safe_load_all((EXAMPLES / "postgres.yaml").read_text())
    found = {(r.target, r.name, r.holds) for r in Application.model_validate(document).references()}
    assert found == {("nodes", "sav-01", False), ("persistentvolumes.orch.ks-tool.dev", "pg-data", True)}


@pytest.mark.parametrize("directory", ["/abs", "a/../b", "a\nb", "a\x7f"])
def test_a_directory_of_a_volume_stays_inside_it(directory: str) -> None:
    mounts = [{"pv": "data", "path": "/d", "subPath": directory}]
    assert fields(application(volumeMounts=mounts)) == ["spec.volumeMounts[0].subPath"]
