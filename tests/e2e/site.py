"""The whole of it: one controller, its nodes, and namespaces that tests have to themselves."""

import json
from typing import Any

from horchestra.apimachinery.names import unit_name
from tests.e2e.controller import Controller
from tests.e2e.machine import Machine, condition
from tests.e2e.waiting import until
from tests.lab.registry import Registry


class Site:
    """A controller with the machines that joined it."""

    def __init__(self, controller: Controller, machines: list[Machine], registry: Registry) -> None:
        self.controller = controller
        self.machines = {machine.name: machine for machine in machines}
        self.registry = registry

    def space(self, namespace: str) -> "Space":
        self.controller.kubectl()("create", "namespace", namespace)
        return Space(self, namespace)


class Space:
    """One namespace; `kubectl` works in it."""

    def __init__(self, site: Site, namespace: str) -> None:
        self.site = site
        self.namespace = namespace
        self.kubectl = site.controller.kubectl(namespace)

    def run(self, name: str, image: str = "lab/no-user:1", node: str = "sav-01", **spec: Any) -> str:
        """Apply an application; what kubectl printed."""
        return self.kubectl.apply(application(name, image, node, **spec))

    def started(self, name: str, image: str = "lab/no-user:1", node: str = "sav-01", **spec: Any) -> dict[str, Any]:
        """Apply an application and wait until it runs; its status."""
        self.run(name, image, node, **spec)
        return self.phase(name, "Running")

    def get(self, name: str) -> dict[str, Any] | None:
        return self.site.controller.get("app", name, self.namespace)

    def status(self, name: str) -> dict[str, Any]:
        return (self.get(name) or {}).get("status") or {}

    def condition(self, name: str, kind: str) -> dict[str, str]:
        return condition(self.get(name), kind)

    def phase(self, name: str, phase: str, seconds: float = 20, reason: str | None = None) -> dict[str, Any]:
        """Wait until the application of its present generation has that phase; its status."""

        def reached() -> bool:
            obj = self.get(name) or {"metadata": {}}
            status = obj.get("status") or {}
            generation = obj["metadata"].get("generation")
            seen = status.get("currentRevision" if phase == "Running" else "observedGeneration")
            return (
                seen in (None, generation) and status.get("phase") == phase and reason in (None, status.get("reason"))
            )

        until(reached, f"{name} {phase} {reason or ''}", seconds, lambda: self.explain(name))
        return self.status(name)

    def ready(self, name: str, seconds: float = 20) -> dict[str, Any]:
        """Wait until the present generation runs and is Ready; its status."""

        def reached() -> bool:
            obj = self.get(name)
            found = condition(obj, "Ready")
            return bool(obj) and found.get("status") == "True" and obj is not None and (
                obj["status"].get("currentRevision") == obj["metadata"]["generation"]
            )  # fmt: skip

        until(reached, f"{name} Ready", seconds, lambda: self.explain(name))
        return self.status(name)

    def gone(self, name: str, seconds: float = 20) -> None:
        until(lambda: self.get(name) is None, f"{name} gone", seconds, lambda: self.explain(name))

    def log(self, name: str) -> str:
        return self.kubectl("logs", name)

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and message of the application's Events."""
        found = self.site.controller.get("event", namespace=self.namespace) or {"items": []}
        return [(e["reason"], e["message"]) for e in found["items"] if e["involvedObject"]["name"] == name]

    def unit(self, name: str) -> str:
        return unit_name(self.namespace, name)

    def explain(self, name: str) -> str:
        """What is known of an application that does not do as it should."""
        obj = self.get(name) or {}
        machine = self.site.machines.get((obj.get("spec") or {}).get("nodeName", ""))
        unit = ""
        if machine is not None and machine.node.running:
            options = ("--no-pager", "-n", "15", self.unit(name))
            unit = machine.node.exec("systemctl", "status", *options, check=False).stdout + machine.agent_log()
        return json.dumps(obj.get("status"), indent=1) + "\n" + unit


def application(name: str, image: str, node: str = "sav-01", **spec: Any) -> dict[str, Any]:
    """An Application on `node`; Ready as soon as it has been up for a second."""
    return {
        "apiVersion": "orch.ks-tool.dev/v1",
        "kind": "Application",
        "metadata": {"name": name},
        "spec": {
            "image": f"docker.io/{image}",
            "nodeName": node,
            "minReadySeconds": 1,
            "terminationGracePeriodSeconds": 5,
            **spec,
        },
    }


def volume(name: str, node: str = "sav-01", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "orch.ks-tool.dev/v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {"size": "1Gi", "node": node, **spec},
    }


def secret(name: str, **values: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}


def configmap(name: str, **values: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": values}
