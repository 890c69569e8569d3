"""Secret values reach the process and nothing else, with and without the agent."""

import base64
from typing import Any

import pytest

from tests.integration.agent.rig import Rig, application

pytestmark = pytest.mark.node
IMAGE = "docker.io/lab/no-user:1"
UNIT = "horchestra-app-vault.service"
VALUE = 'top "secret" $HOME `x` \\ %h\nExecStartPre=/bin/touch /tmp/pwned\n\ttail é\\'
MARK = "NEEDLE-7c1d9e"


def secret(name: str, kind: str = "Secret", **data: str) -> dict[str, Any]:
    encoded = {key.replace("_", "."): base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"kind": kind, "namespace": "default", "name": name, "uid": f"uid-{name}", "data": encoded}


def vault(generation: int = 1, **spec: Any) -> dict[str, Any]:
    return application(
        "vault", IMAGE, generation=generation,
        env=[
            {"name": "PHRASE", "valueFrom": {"secretKeyRef": {"name": "db", "key": "phrase"}}},
            {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "level"}}},
            {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "db", "key": "absent", "optional": True}}},
            {"name": "PLAIN", "value": "1"},
        ],
        volumeMounts=[
            {"secret": {"name": "db"}, "path": "/etc/db"},
            {"configMap": {"name": "conf"}, "path": "/etc/conf"},
        ],
        **spec,
    )  # fmt: skip


def test_values_arrive_byte_for_byte_and_nobody_else_sees_them(rig: Rig) -> None:
    rig.apply(vault(), secrets=[secret("db", phrase=VALUE + MARK, file=MARK), secret("conf", "ConfigMap", level="3")])
    rig.ready("vault", 30)
    environment = rig.environ(UNIT)
    assert environment["PHRASE"] == VALUE + MARK
    assert (environment["LEVEL"], environment["PLAIN"]) == ("3", "1")
    assert "NONE" not in environment
    assert rig.inside(UNIT, "/bin/cat", "/etc/db/phrase") == VALUE + MARK
    assert rig.inside(UNIT, "/bin/cat", "/etc/conf/level") == "3"
    assert "/tmp/pwned" not in rig.node.exec("sh", "-c", "ls /tmp/*", check=False).stdout
    everywhere = f"""
        systemctl show '*' ; systemctl cat '{UNIT}' 'horchestra-start@*'
        for p in /proc/[0-9]*; do cat $p/environ $p/cmdline 2>/dev/null | tr '\\0' ' '; done
        find / -xdev -type f -not -path '/proc/*' -readable -exec grep -l '{MARK}' {{}} + 2>/dev/null
        find /run /var/lib/horchestra -type f -readable -exec grep -l '{MARK}' {{}} + 2>/dev/null
    """
    seen = rig.node.exec("setpriv", "--reuid=65534", "--clear-groups", "sh", check=False, input=everywhere).stdout
    assert MARK not in seen
    on_disk = rig.node.exec("grep", "-rl", MARK, "/var/lib/horchestra", "/etc", "/var/log", check=False).stdout
    assert on_disk == ""
    assert MARK not in rig.node.exec("journalctl", "--no-pager").stdout


def test_files_follow_a_change_in_place_and_variables_ask_for_a_restart(rig: Rig) -> None:
    before = rig.show(UNIT, "InvocationID")
    rig.apply(vault(), secrets=[secret("db", phrase="new"), secret("conf", "ConfigMap", level="3", more="x")])
    rig.until(lambda: rig.inside(UNIT, "/bin/cat", "/etc/db/phrase") == "new", "swap the file", 5)
    assert rig.inside(UNIT, "/bin/ls", "/etc/db").split() == ["phrase"]
    assert rig.inside(UNIT, "/bin/ls", "/etc/conf").split() == ["level", "more"]
    rig.until(lambda: "RestartRequired" in rig.conditions("vault"), "tell", 5)
    assert rig.show(UNIT, "InvocationID") == before
    rig.node.exec("systemctl", "restart", UNIT)
    rig.until(lambda: "RestartRequired" not in rig.conditions("vault"), "forget", 12)
    assert rig.environ(UNIT)["PHRASE"] == "new"


def test_a_deleted_secret_keeps_its_last_values(rig: Rig) -> None:
    gone = {**secret("db"), "missing": True}
    before = rig.show(UNIT, "InvocationID")
    rig.apply(vault(), secrets=[gone, secret("conf", "ConfigMap", level="4")])
    rig.until(lambda: "SecretMissing" in rig.conditions("vault"), "tell", 5)
    assert 'secret "db"' in rig.conditions("vault")["SecretMissing"]["message"]
    rig.until(lambda: rig.inside(UNIT, "/bin/cat", "/etc/conf/level") == "4", "follow the other", 5)
    assert rig.inside(UNIT, "/bin/cat", "/etc/db/phrase") == "new"
    assert rig.show(UNIT, "InvocationID") == before


def test_values_come_back_after_a_power_cut_without_the_agent(rig: Rig) -> None:
    rig.stop_agent()
    rig.node.power_cut()
    rig.node.start()
    rig.node.wait_ready()
    rig.until(lambda: rig.pid(UNIT), "start at boot", 10)
    assert rig.environ(UNIT)["PHRASE"] == "new"
    assert rig.inside(UNIT, "/bin/cat", "/etc/db/phrase") == "new"
    before = rig.show(UNIT, "InvocationID")
    rig.start_agent()
    rig.ready("vault")
    assert rig.show(UNIT, "InvocationID") == before


def test_an_application_waits_for_a_secret_that_does_not_exist(rig: Rig) -> None:
    env = [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "later", "key": "x"}}}]
    app = application("waits", IMAGE, env=env)
    rig.apply(vault(), app, secrets=[secret("db", phrase="new"), secret("conf", "ConfigMap", level="4"),
                                     {**secret("later"), "missing": True}])  # fmt: skip
    status = rig.until(lambda: (s := rig.status("waits")).get("reason") == "SecretNotFound" and s, "tell", 20)
    assert status["phase"] == "Pending"
    rig.apply(
        vault(),
        app,
        secrets=[secret("db", phrase="new"), secret("conf", "ConfigMap", level="4"), secret("later", x="1")],
    )
    rig.phase("waits", "Running", 10)
