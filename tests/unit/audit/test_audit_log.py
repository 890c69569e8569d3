import json
import logging

import pytest

from horchestra.audit.log import AuditRecord, write


def test_a_record_is_one_json_line(caplog: pytest.LogCaptureFixture) -> None:
    record = AuditRecord(
        request_id="r1",
        user="alice\nroot",
        groups=("a", "b"),
        credential="certificate:1f",
        verb="create",
        group="",
        resource="secrets",
        subresource="",
        namespace="default",
        name="db",
        path="",
        source="10.0.0.9",
        code=201,
        reason="",
        dry_run=False,
        agent="kubectl",
    )
    with caplog.at_level(logging.INFO, "horchestra.audit"):
        write(record)
    assert "\n" not in caplog.messages[0]
    found = json.loads(caplog.messages[0])
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "request_id": "r1",
        "user": "alice\nroot",
        "groups": ["a", "b"],
        "credential": "certificate:1f",
        "verb": "create",
        "resource": "secrets",
        "namespace": "default",
        "name": "db",
        "source": "10.0.0.9",
        "code": 201,
        "dry_run": False,
        "agent": "kubectl",
    }
