"""Defaults: what the server fills in, and what it leaves as it was sent."""

from __future__ import annotations

import copy
from pathlib import Path

import yaml

from horchestra.apimachinery import schema
from horchestra.kinds.application import Application

(_, EXAMPLE) = yaml.safe_load_all((Path(__file__).parents[3] / "examples" / "postgres.yaml").read_text())


def test_absent_fields_are_filled() -> None:
    obj = copy.deepcopy(EXAMPLE)
    schema.apply_defaults(Application, obj)
    assert obj["spec"]["imagePullPolicy"] == "IfNotPresent"
    assert obj["spec"]["securityContext"] == {"profile": "hardened"}


def test_lists_stay_as_sent_so_that_a_second_apply_changes_nothing() -> None:
    obj = copy.deepcopy(EXAMPLE)
    schema.apply_defaults(Application, obj)
    assert {k: v for k, v in obj["spec"].items() if isinstance(v, list)} == {
        k: v for k, v in EXAMPLE["spec"].items() if isinstance(v, list)
    }
