"""Applications, volumes and namespaces as the controllers see them, on the real store."""

from __future__ import annotations

from typing import Any

import pytest

from horchestra.apimachinery.admission import SYSTEM
from horchestra.apimachinery.errors import StatusError
from horchestra.kinds.namespace import Namespace
from horchestra.kinds.persistentvolume import PersistentVolume
from horchestra.storage.options import DeleteOptions
from tests.integration.nodes.conftest import Join
from tests.integration.nodes.estate import Controller, application
from tests.integration.nodes.standin import eventually


def reason(controller: Controller, name: str) -> str:
    return str(controller.application(name).get("status", {}).get("reason", ""))


def message(controller: Controller, name: str) -> str:
    return str(controller.application(name).get("status", {}).get("message", ""))


def volume(name: str, node: str = "sav-01", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "orch.ks-tool.dev/v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {"size": "1Gi", "node": node, **spec},
    }


def status(controller: Controller, name: str) -> dict[str, Any]:
    entry = controller.store.watch.get(PersistentVolume, "", name)
    return entry.obj.get("status", {}) if entry else {}


async def ready(controller: Controller, node: str = "sav-01") -> None:
    await eventually(lambda: controller.condition(node, "Ready")[0] == "True")


async def test_an_application_that_names_no_node_is_unscheduled(controller: Controller) -> None:
    manifest = application("web", "")
    await controller.create(manifest)
    await eventually(lambda: reason(controller, "web") == "Unscheduled")
    assert "set spec.nodeName" in controller.application("web")["status"]["message"]
    assert controller.phase("web") == "Pending"
    await eventually(lambda: "FailedScheduling" in controller.events())


async def test_a_node_that_is_not_registered_is_named_with_the_command_that_makes_it(controller: Controller) -> None:
    await controller.apply("web", "sav-01")
    await eventually(lambda: reason(controller, "web") == "NodeNotRegistered")
    words = 'node "sav-01" is not registered; create it with manage.py createnodecert sav-01'
    assert message(controller, "web") == words


async def test_what_does_not_fit_when_the_node_appears_waits_and_the_oldest_wins(
    controller: Controller, join: Join
) -> None:
    for name in ("first", "second", "third"):
        cpu = {"requests": {"cpu": "3" if name != "third" else "1"}}
        await controller.apply(name, "sav-01", resources=cpu)
    agent = await join()
    await eventually(lambda: controller.phase("first") == controller.phase("third") == "Running")
    assert reason(controller, "second") == "OutOfCapacity"
    assert agent.runtime.names == ["first", "third"]
    await controller.delete("first")
    await eventually(lambda: controller.phase("second") == "Running")


async def test_a_port_that_two_wanted_before_their_node_was_known_goes_to_the_older(
    controller: Controller, join: Join
) -> None:
    # Neither could be refused when it was written: their nodes became the same only when one moved.
    await controller.apply("first", "n2", ports=[{"port": 80}])
    await controller.apply("second", "n2", ports=[{"port": 81}])
    agent = await join("n2")
    await eventually(lambda: controller.phase("second") == "Running")
    with pytest.raises(StatusError, match="is taken by"):
        await controller.apply("third", "n2", ports=[{"port": 80}])
    assert agent.runtime.names == ["first", "second"]


async def test_a_volume_that_is_missing_holds_its_application_until_it_is_there(
    controller: Controller, join: Join
) -> None:
    await join()
    await ready(controller)
    await controller.apply("db", "sav-01", volumeMounts=[{"pv": "data", "path": "/data"}])
    await eventually(lambda: reason(controller, "db") == "VolumeNotFound")
    await controller.create(volume("data"))
    await eventually(lambda: controller.phase("db") == "Running")
    await eventually(lambda: status(controller, "data")["phase"] == "Bound")
    assert status(controller, "data")["users"] == ["default/db"]


async def test_a_volume_in_use_is_deleted_when_its_last_user_goes(controller: Controller, join: Join) -> None:
    await join()
    await ready(controller)
    await controller.create(volume("data"))
    await eventually(lambda: status(controller, "data").get("phase") == "Available")
    await controller.apply("db", "sav-01", volumeMounts=[{"pv": "data", "path": "/data"}])
    await eventually(lambda: controller.phase("db") == "Running")
    await controller.store.delete(PersistentVolume, "", "data", DeleteOptions(user=SYSTEM))
    await eventually(lambda: status(controller, "data")["phase"] == "Terminating")
    assert "default/db" in status(controller, "data")["message"]
    await controller.delete("db")
    await eventually(lambda: not status(controller, "data"))


async def test_an_application_no_node_has_seen_is_deleted_at_once(controller: Controller, join: Join) -> None:
    await controller.apply("never", "nowhere")
    await eventually(lambda: reason(controller, "never") == "NodeNotRegistered")
    await controller.delete("never")
    await eventually(lambda: not controller.application("never"))


async def test_a_deleted_namespace_is_emptied_and_its_volumes_stay(controller: Controller, join: Join) -> None:
    agent = await join()
    await ready(controller)
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    await controller.create(manifest)
    await controller.create(volume("data"))
    app = application("db", "sav-01", volumeMounts=[{"pv": "data", "path": "/data"}])
    app["metadata"]["namespace"] = "team"
    await controller.create(app)
    await eventually(lambda: controller.application("db", "team")["status"]["phase"] == "Running")
    await controller.store.delete(Namespace, "", "team", DeleteOptions(user=SYSTEM))
    await eventually(lambda: controller.store.watch.get(Namespace, "", "team") is None)
    assert not controller.application("db", "team")
    assert agent.runtime.running == {}
    await eventually(lambda: status(controller, "data")["phase"] == "Available")


async def test_the_default_namespace_comes_back(controller: Controller) -> None:
    await controller.store.delete(Namespace, "", "default", DeleteOptions(user=SYSTEM))
    uid = None

    def present() -> bool:
        entry = controller.store.watch.get(Namespace, "", "default")
        return entry is not None and not entry.obj["metadata"].get("deletionTimestamp") and entry.uid != uid

    await eventually(present)


async def test_the_steps_of_a_life_are_events(controller: Controller, join: Join) -> None:
    await controller.apply("web", "sav-01")
    await join()
    await eventually(lambda: {"FailedScheduling", "Scheduled", "NodeReady"} <= controller.events())
