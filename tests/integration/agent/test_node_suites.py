"""The same on another systemd (257): byte-exact words, a process tree of its own, secrets, back-off."""

from collections.abc import Iterator

import pytest

from tests.integration.agent.rig import Rig, application
from tests.integration.agent.test_node_quoting import HOSTILE, check
from tests.integration.agent.test_node_secrets import VALUE, secret, vault
from tests.lab.nodes import Nodes
from tests.lab.registry import Registry

pytestmark = [pytest.mark.node, pytest.mark.long]


@pytest.fixture(scope="module")
def rig(lab_nodes: Nodes, registry: Registry) -> Iterator[Rig]:
    made = Rig(lab_nodes, registry, "trixie")
    made.start_agent()
    yield made
    made.close()


def test_hostile_words_arrive_byte_for_byte(rig: Rig) -> None:
    check(rig, 1, HOSTILE)


def test_each_application_has_its_own_process_tree(rig: Rig) -> None:
    rig.apply(application("alone", "docker.io/lab/no-user:1"))
    rig.ready("alone", 40)
    status = rig.node.exec("cat", f"/proc/{rig.pid('horchestra-app-alone.service')}/status").stdout
    namespaced = next(line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
    assert namespaced[-1] == "1"
    assert "SharedUid" not in rig.conditions("alone")


def test_secret_values_arrive(rig: Rig) -> None:
    rig.apply(vault(), secrets=[secret("db", phrase=VALUE), secret("conf", "ConfigMap", level="3")])
    rig.ready("vault", 40)
    assert rig.environ("horchestra-app-vault.service")["PHRASE"] == VALUE
    assert rig.inside("horchestra-app-vault.service", "/bin/cat", "/etc/db/phrase") == VALUE


def test_a_crash_loop_backs_off(rig: Rig) -> None:
    rig.apply(application("loop", "docker.io/lab/crashes:1"))
    status = rig.until(lambda: (s := rig.status("loop")).get("reason") == "CrashLoopBackOff" and s, "tell", 40)
    assert status["restartCount"] == 2


def test_a_root_master_serves_port_80(rig: Rig) -> None:
    rig.apply(application("nginx", "docker.io/library/nginx:stable", ports=[{"port": 80}],
                          volumeMounts=[{"tmpfs": {"size": "16Mi"}, "path": "/var/cache/nginx"}]))  # fmt: skip
    rig.ready("nginx", 40)
    assert rig.node.exec("curl", "-sf", "http://127.0.0.1/").stdout
