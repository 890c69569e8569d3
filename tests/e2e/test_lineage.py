"""A controller whose data is not what a node followed changes nothing there until an administrator says so."""

from collections.abc import Iterator

import pytest

from tests.e2e.controller import Controller
from tests.e2e.machine import Machine, condition, joined, reports
from tests.e2e.site import Site, volume
from tests.e2e.waiting import throughout, until
from tests.lab.network import LabNetwork
from tests.lab.nodes import Nodes
from tests.lab.registry import Registry

pytestmark = pytest.mark.node

NODE = "lin-01"
ACCEPT, ADOPT = "orch.ks-tool.dev/accept-lineage", "orch.ks-tool.dev/adopt"
STAY = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"


@pytest.fixture(scope="module")
def own(lab_network: LabNetwork, lab_nodes: Nodes, registry: Registry) -> Iterator[Site]:
    """A controller and a node that only these tests use: they end on another history than they began with."""
    controller = Controller(
        lab_network.estate.directory / "lineage", lab_network.address, api_port=7443, agent_port=7444
    )
    controller.start()
    machines = joined(lab_nodes, controller, registry.endpoint, (NODE,))
    yield Site(controller, machines, registry)
    machines[0].remove()
    controller.stop()


def test_an_older_copy_of_the_database_pauses_the_node_until_it_is_accepted(own: Site) -> None:
    controller, machine = own.controller, own.machines[NODE]
    space = own.space("older")
    space.started("known", node=NODE)
    controller.stop()
    copy = controller.keep_database("yesterday")
    controller.start()
    reports(machine, controller)
    space.started("later", node=NODE)
    for number in range(30):
        space.kubectl("create", "configmap", f"later-{number}")
    space.kubectl("patch", "app", "known", "--type=merge", "-p", '{"spec": {"env": {"COLOUR": "blue"}}}')
    space.phase("known", "Running")
    before = machine.invocations()

    controller.stop()
    controller.replace_database(copy)
    controller.start()
    until(lambda: _paused(controller) == "True", "ConflictPaused", 30, machine.agent_log)
    said = condition(controller.get("node", NODE), "ConflictPaused")["message"]
    assert "older" in said
    assert "kubectl annotate node" in said
    assert space.get("later") is None
    space.run("new", node=NODE)
    throughout(lambda: machine.invocations() == before, "everything runs as it did", 5)
    machine.restart_agent()
    throughout(lambda: machine.invocations() == before, "also after a restart of the agent", 5)
    assert _paused(controller) == "True"

    line = next(word for word in said.split() if word.startswith(f"{ACCEPT}="))
    space.kubectl("annotate", "node", NODE, line)
    space.phase("new", "Running")
    until(lambda: _paused(controller) == "False", "the pause is over", 10)
    assert machine.runs("later", "older")
    assert any(orphan.startswith("older/later ") for orphan in _orphans(controller))
    assert ACCEPT not in (controller.get("node", NODE) or {})["metadata"].get("annotations", {})


def test_an_empty_database_stops_nothing_and_shows_the_node_for_adoption(own: Site) -> None:
    controller, machine = own.controller, own.machines[NODE]
    space = own.space("empty")
    space.kubectl.apply(volume("empty-data", NODE), volume("empty-gone", NODE, reclaimPolicy="Delete"))
    mounts = [{"pv": "empty-data", "path": "/data"}, {"pv": "empty-gone", "path": "/gone"}]
    script = f"echo kept > /data/file; echo kept > /gone/file; {STAY}"
    space.started("web", node=NODE, command=["/bin/sh", "-c", script], volumeMounts=mounts)
    uids = [str(space.kubectl.get("pv", name)["metadata"]["uid"]) for name in ("empty-data", "empty-gone")]
    for uid in uids:
        until(lambda uid=uid: (machine.volume(uid) / "file").exists(), "data in the volume", 10)  # type: ignore[misc]
    before = machine.invocations()

    controller.stop()
    controller.replace_database(None)
    controller.start()
    until(lambda: condition(controller.get("node", NODE), "Adopted").get("status") == "False", "shown for adoption", 30,
          machine.agent_log)  # fmt: skip
    assert f"kubectl annotate node {NODE} {ADOPT}=true" in condition(controller.get("node", NODE), "Adopted")["message"]
    throughout(lambda: machine.invocations() == before, "everything runs as it did", 5)

    controller.kubectl()("annotate", "node", NODE, f"{ADOPT}=true")
    until(lambda: _paused(controller) == "True", "ConflictPaused", 20, machine.agent_log)
    said = condition(controller.get("node", NODE), "ConflictPaused")["message"]
    throughout(lambda: machine.invocations() == before, "everything runs as it did", 3)
    line = next(word for word in said.split() if word.startswith(f"{ACCEPT}="))
    controller.kubectl()("annotate", "node", NODE, line)
    until(lambda: _paused(controller) == "False", "the pause is over", 20, machine.agent_log)
    until(lambda: any(o.startswith("empty/web ") for o in _orphans(controller)), "listed as an orphan", 10)
    fresh = own.space("fresh")
    fresh.started("web", node=NODE)
    assert {unit: machine.invocations().get(unit) for unit in before} == before
    for uid in uids:
        assert (machine.volume(uid) / "file").read_text() == "kept\n"


@pytest.mark.parametrize("way", ["copied-files", "same-bundle"])
def test_a_second_machine_with_the_same_certificate_gets_nothing_and_the_first_goes_on(
    own: Site, lab_nodes: Nodes, registry: Registry, way: str
) -> None:
    controller, machine = own.controller, own.machines[NODE]
    space = own.space(f"clone-{way}")
    space.started("web", node=NODE)
    before = machine.invocations()
    clone = Machine(lab_nodes, f"clone-{way}")
    try:
        if way == "copied-files":
            _copy_identity(machine, clone)
        else:
            clone.join(machine.bundle, registry.endpoint)
        clone.start_agent()
        own_id = clone.node.exec("cat", "/etc/machine-id").stdout.strip()
        until(lambda: own_id in condition(controller.get("node", NODE), "DuplicateNode").get("message", ""),
              "DuplicateNode", 20, clone.agent_log)  # fmt: skip
        assert condition(controller.get("node", NODE), "DuplicateNode")["status"] == "True"
        space.started("after", node=NODE)
        assert clone.invocations() == {}
        assert {unit: machine.invocations().get(unit) for unit in before} == before
        assert space.status("web")["phase"] == "Running"
    finally:
        clone.remove()


def _copy_identity(machine: Machine, clone: Machine) -> None:
    for path in ("agent.toml", "pki/ca.pem", "pki/node.pem", "pki/node.key"):
        clone.node.write(f"/etc/horchestra/{path}", machine.node.path(f"/etc/horchestra/{path}").read_text(), 0o600)
    unit = "etc/systemd/system/horchestra-agent.service"
    clone.node.write(unit, machine.node.path(unit).read_text())
    clone.node.exec("systemctl", "daemon-reload")


def _paused(controller: Controller) -> str:
    return condition(controller.get("node", NODE), "ConflictPaused").get("status", "")


def _orphans(controller: Controller) -> list[str]:
    return list((controller.get("node", NODE) or {})["status"].get("orphans", []))
