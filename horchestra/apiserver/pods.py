"""Pods: a read-only picture of Applications for clients of Kubernetes (`kubectl logs`, `drain`, `top`, dashboards)."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid5

from pydantic import Field

from horchestra.apimachinery import codec
from horchestra.apimachinery.meta import APIObject, Condition, Model
from horchestra.apimachinery.registry import READ_VERBS, Column, Resource
from horchestra.storage.watch import Entry

APPLICATIONS = ("orch.ks-tool.dev", "v1", "applications")
ROUTE = ("", "v1", "pods")
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
DRAINED = "NodeDrained"
"""Reason of an application whose pod was evicted: until it is placed again there is no pod."""
_UIDS = UUID("6d0d3d4c-58f3-5d3b-9c52-8f4f8a1f2f5e")
_PHASES = {"Running": "Running", "Succeeded": "Succeeded", "Failed": "Failed", "Unknown": "Unknown"}


class ContainerPort(Model):
    name: str = ""
    """Name of the port."""
    containerPort: int = 0
    """Port the process listens on."""
    protocol: str = "TCP"
    """TCP or UDP."""


class Container(Model):
    name: str
    """Name of the container: the application's."""
    image: str = ""
    """Image it runs."""
    command: list[str] = Field(default_factory=list)
    """Replaces the image's entrypoint."""
    args: list[str] = Field(default_factory=list)
    """Replaces the image's command."""
    ports: list[ContainerPort] = Field(default_factory=list)
    """Ports it listens on."""
    resources: dict[str, Any] = Field(default_factory=dict)
    """Requests and limits."""


class PodSpec(Model):
    nodeName: str = ""
    """Node it runs on."""
    containers: list[Container] = Field(default_factory=list)
    """One: the application's process."""
    restartPolicy: str = "Always"
    """Always, OnFailure or Never."""
    terminationGracePeriodSeconds: int = 30
    """Seconds between the stop signal and SIGKILL."""
    hostNetwork: bool = True
    """Applications use the node's own network."""
    securityContext: dict[str, Any] = Field(default_factory=dict)
    """Present for clients of Kubernetes."""


class ContainerStatus(Model):
    name: str
    """Name of the container."""
    ready: bool = False
    """Whether the application is Ready."""
    started: bool = False
    """Whether its process runs."""
    restartCount: int = 0
    """Automatic restarts."""
    image: str = ""
    """Image it runs."""
    imageID: str = ""
    """Digest of the image."""
    containerID: str = ""
    """Its systemd unit is named by the application; there is no other id."""
    state: dict[str, Any] = Field(default_factory=dict)
    """waiting, running or terminated."""
    lastState: dict[str, Any] = Field(default_factory=dict)
    """How the process before this one ended."""


class PodStatus(Model):
    phase: str = "Pending"
    """Pending, Running, Succeeded, Failed or Unknown."""
    reason: str = ""
    """CamelCase reason of the phase."""
    message: str = ""
    """What it means and what to do."""
    hostIP: str = ""
    """Address of the node."""
    podIP: str = ""
    """Address under which the application answers: the node's."""
    podIPs: list[dict[str, str]] = Field(default_factory=list)
    """All addresses."""
    startTime: str | None = None
    """When the process was started."""
    conditions: list[Condition] = Field(default_factory=list)
    """PodScheduled, Initialized, ContainersReady, Ready."""
    containerStatuses: list[ContainerStatus] = Field(default_factory=list)
    """State of the one container."""


def _ready(obj: dict[str, Any]) -> str:
    statuses = obj["status"]["containerStatuses"]
    return f"{sum(s['ready'] for s in statuses)}/{len(statuses)}"


def _word(obj: dict[str, Any]) -> str:
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    state = obj["status"]["containerStatuses"][0]["state"]
    waiting = state.get("waiting", {}).get("reason")
    if state.get("terminated"):
        return "Completed" if obj["status"]["phase"] == "Succeeded" else "Error"
    return str(waiting or obj["status"].get("reason") or obj["status"]["phase"])


class Pod(APIObject):
    """What runs for an Application. Made by the server from the Application of the same name; it cannot be written."""

    resource = Resource(
        group=ROUTE[0],
        version=ROUTE[1],
        kind="Pod",
        plural=ROUTE[2],
        singular="pod",
        short_names=("po",),
        verbs=READ_VERBS,
        columns=(
            Column("Ready", _ready, description="Containers that are ready"),
            Column("Status", _word, description="Phase, or why it does not run"),
            Column(
                "Restarts",
                lambda o: o["status"]["containerStatuses"][0]["restartCount"],
                type="integer",
                description="Automatic restarts",
            ),
            Column("IP", lambda o: o["status"].get("podIP") or "<none>", wide=True, description="Address"),
            Column("Node", lambda o: o["spec"].get("nodeName") or "<none>", wide=True, description="Node it runs on"),
        ),
        field_selectors={
            "spec.nodeName": "spec.nodeName",
            "spec.restartPolicy": "spec.restartPolicy",
            "status.phase": "status.phase",
            "status.podIP": "status.podIP",
        },
    )

    spec: PodSpec = Field(default_factory=PodSpec)
    """What runs."""
    status: PodStatus = Field(default_factory=PodStatus)
    """What was observed."""


def project(entry: Entry) -> Entry | None:
    """The pod of an application, or None while it has none. Kept with the entry: an object version has one pod."""
    if "pod" not in entry.cache:
        obj = pod(entry.obj, str(entry.revision))
        entry.cache["pod"] = obj and Entry(
            Pod, entry.namespace, entry.name, obj["metadata"]["uid"], entry.revision, codec.encode(obj), obj
        )
    found: Entry | None = entry.cache["pod"]
    return found


def pod(application: dict[str, Any], resource_version: str) -> dict[str, Any] | None:
    """Pure: Application JSON to Pod JSON.

    The uid outlives automatic restarts; another node or another running revision is another pod.
    """
    meta, spec, status = application["metadata"], application["spec"], application.get("status", {})
    if status.get("reason") == DRAINED:
        return None
    annotations = {k: v for k, v in meta.get("annotations", {}).items() if k != LAST_APPLIED}
    shown = {
        "name": meta["name"],
        "namespace": meta["namespace"],
        "uid": _uid(meta, spec, status),
        "resourceVersion": resource_version,
        "creationTimestamp": meta.get("creationTimestamp"),
        "labels": meta.get("labels", {}),
        "annotations": {**annotations, DEFAULT_CONTAINER: meta["name"]},
        "ownerReferences": [
            {
                "apiVersion": application["apiVersion"],
                "kind": application["kind"],
                "name": meta["name"],
                "uid": meta["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if meta.get("deletionTimestamp"):
        shown["deletionTimestamp"] = meta["deletionTimestamp"]
        shown["deletionGracePeriodSeconds"] = spec.get("terminationGracePeriodSeconds", 30)
    return {
        "apiVersion": Pod.resource.api_version,
        "kind": Pod.resource.kind,
        "metadata": shown,
        "spec": _spec(meta["name"], spec),
        "status": _status(meta, spec, status),
    }


def _uid(meta: dict[str, Any], spec: dict[str, Any], status: dict[str, Any]) -> str:
    revision = status.get("currentRevision") or meta.get("generation", 1)
    return str(uuid5(_UIDS, f"{meta['uid']}/{spec.get('nodeName', '')}/{revision}"))


def _spec(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = {"name": name, "image": spec["image"], "resources": spec.get("resources", {})}
    container |= {key: spec[key] for key in ("command", "args", "workingDir") if spec.get(key)}
    if spec.get("ports"):
        container["ports"] = [
            {"name": p.get("name", ""), "containerPort": p["port"], "protocol": p.get("protocol", "TCP")}
            for p in spec["ports"]
        ]
    return {
        **({"nodeName": spec["nodeName"]} if spec.get("nodeName") else {}),
        "containers": [container],
        "restartPolicy": spec.get("restartPolicy", "Always"),
        "terminationGracePeriodSeconds": spec.get("terminationGracePeriodSeconds", 30),
        "hostNetwork": True,
        "securityContext": {},
    }


def _status(meta: dict[str, Any], spec: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    phase = status.get("phase", "Pending")
    running = phase == "Running" or (phase == "Terminating" and bool(status.get("startedAt")))
    ready = _condition(status, "Ready")
    is_ready = running and ready.get("status") == "True"
    container = {
        "name": meta["name"],
        "ready": is_ready,
        "started": running,
        "restartCount": status.get("restartCount", 0),
        "image": spec["image"],
        "imageID": status.get("imageDigest", ""),
        "containerID": "",
        "state": _state(phase, running, status),
        "lastState": {},
    }
    addresses = status.get("addresses", [])
    shown: dict[str, Any] = {
        "phase": "Running" if running else _PHASES.get(phase, "Pending"),
        "conditions": _conditions(spec, status, running, is_ready),
        "containerStatuses": [container],
    }
    shown |= {key: status[key] for key in ("reason", "message") if status.get(key)}
    if addresses:
        shown |= {"hostIP": addresses[0], "podIP": addresses[0], "podIPs": [{"ip": a} for a in addresses]}
    if status.get("startedAt"):
        shown["startTime"] = status["startedAt"]
    return shown


def _state(phase: str, running: bool, status: dict[str, Any]) -> dict[str, Any]:
    if running and status.get("reason") != "CrashLoopBackOff":
        return {"running": {"startedAt": status.get("startedAt")}}
    if phase in ("Succeeded", "Failed"):
        ended: dict[str, Any] = {
            "exitCode": status.get("exitCode") or 0,
            "reason": "Completed" if phase == "Succeeded" else status.get("reason") or "Error",
        }
        ended |= {key: status[key] for key in ("startedAt", "finishedAt", "message") if status.get(key)}
        return {"terminated": ended}
    waiting = {"reason": status.get("reason") or phase}
    return {"waiting": {**waiting, **({"message": status["message"]} if status.get("message") else {})}}


def _condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next((c for c in status.get("conditions", []) if c.get("type") == kind), {})


def _conditions(spec: dict[str, Any], status: dict[str, Any], running: bool, ready: bool) -> list[dict[str, Any]]:
    scheduled = bool(spec.get("nodeName"))
    since = _condition(status, "Ready").get("lastTransitionTime")
    flags = {"PodScheduled": scheduled, "Initialized": running, "ContainersReady": ready, "Ready": ready}
    when = {"lastTransitionTime": since} if since else {}
    return [{"type": kind, "status": "True" if flag else "False", **when} for kind, flag in flags.items()]
