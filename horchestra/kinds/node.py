"""Node (core/v1): a host with an agent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from horchestra.apimachinery import quantity
from horchestra.apimachinery.admission import AdmissionRequest, Operation
from horchestra.apimachinery.errors import Cause, StatusError
from horchestra.apimachinery.meta import APIObject, Condition, Model
from horchestra.apimachinery.names import name_fault
from horchestra.apimachinery.registry import Column, Resource

ACCEPT_LINEAGE = "orch.ks-tool.dev/accept-lineage"
ADOPT = "orch.ks-tool.dev/adopt"


def _amount(value: str | int) -> str | int:
    if quantity.parse(value) < 0:
        raise ValueError("must not be negative")
    return value


Amount = Annotated[str | int, AfterValidator(_amount)]
"""Rules of placement and admission read it, whoever wrote it."""


class Taint(Model):
    key: str
    """Key of the taint."""
    value: str = ""
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    """What it does to applications that do not tolerate it."""
    timeAdded: str | None = None
    """When it was added."""


class NodeSpec(Model):
    unschedulable: bool = False
    """No new applications are placed here (`kubectl cordon`)."""
    taints: list[Taint] = Field(default_factory=list)
    """Marks that keep applications away."""


class NodeAddress(Model):
    type: str
    """InternalIP or Hostname."""
    address: str
    """The address."""


class NodeSystemInfo(Model):
    machineID: str = ""
    """/etc/machine-id of the host."""
    bootID: str = ""
    """Changes with each boot."""
    systemUUID: str = ""
    """UUID of the machine's firmware."""
    kernelVersion: str = ""
    """Linux version."""
    osImage: str = ""
    """Name of the distribution."""
    operatingSystem: str = ""
    """linux"""
    architecture: str = ""
    """amd64, arm64, ..."""
    containerRuntimeVersion: str = ""
    """systemd://VERSION"""
    kubeletVersion: str = ""
    """Version of the agent."""
    kubeProxyVersion: str = ""
    """Unused; present for clients of Kubernetes."""


class NodeVolume(Model):
    uid: str
    """UID of the volume."""
    name: str
    """Name of the volume."""
    path: str = ""
    """Its directory."""
    bytes: int | None = None
    """Space it takes, when that was measured."""
    phase: str = ""
    """Bound, Available or Retained (the object is gone, the data is kept)."""
    quota_enforced: bool = False
    """The host refuses to let it grow beyond its size."""


class NodeStatus(Model):
    capacity: dict[str, Amount] = Field(default_factory=dict)
    """What the host has: cpu, memory, ephemeral-storage."""
    allocatable: dict[str, Amount] = Field(default_factory=dict)
    """What applications may request of it."""
    addresses: list[NodeAddress] = Field(default_factory=list)
    """Addresses under which its applications answer."""
    conditions: list[Condition] = Field(default_factory=list)
    """Ready, ConflictPaused, DuplicateNode, ReducedIsolation, ..."""
    nodeInfo: NodeSystemInfo = Field(default_factory=NodeSystemInfo)
    """What the host is."""
    lineage: str = ""
    """History of the controller that the node follows."""
    orphans: list[str] = Field(default_factory=list)
    """Applications that run here and are in no desired state (namespace/name uid)."""
    volumes: list[NodeVolume] = Field(default_factory=list)
    """Volume directories found here, kept ones of deleted volumes included."""
    lastSeen: str | None = None
    """When its last session ended; while one is open the node is seen now."""


def _ready(obj: dict[str, Any]) -> str:
    ready = next((c for c in obj.get("status", {}).get("conditions", []) if c.get("type") == "Ready"), None)
    words = {"True": "Ready", "False": "NotReady"}.get(ready["status"], "Unknown") if ready else "NotReady"
    return words + (",SchedulingDisabled" if obj.get("spec", {}).get("unschedulable") else "")


def _info(field: str) -> Any:
    return lambda o: o.get("status", {}).get("nodeInfo", {}).get(field, "")


def _address(obj: dict[str, Any]) -> str:
    addresses = obj.get("status", {}).get("addresses", [])
    return next((a["address"] for a in addresses if a.get("type") == "InternalIP"), "<none>")


class Node(APIObject):
    """A host whose agent keeps applications running."""

    resource = Resource(
        group="",
        version="v1",
        kind="Node",
        plural="nodes",
        singular="node",
        namespaced=False,
        short_names=("no",),
        status=True,
        strategic_merge=True,
        columns=(
            Column("Status", _ready, description="Ready, NotReady or Unknown"),
            Column("Version", _info("kubeletVersion"), description="Version of the agent"),
            Column("Internal-IP", _address, wide=True, description="Address of the host"),
            Column("OS-Image", _info("osImage"), wide=True, description="Distribution"),
            Column("Kernel-Version", _info("kernelVersion"), wide=True, description="Linux version"),
            Column("Runtime", _info("containerRuntimeVersion"), wide=True, description="systemd version"),
        ),
        field_selectors={"spec.unschedulable": "spec.unschedulable"},
    )

    spec: NodeSpec = Field(default_factory=NodeSpec)
    """How the node may be used."""
    status: NodeStatus = Field(default_factory=NodeStatus)
    """What the node is and how it does."""

    def validate_object(self) -> list[Cause]:
        if fault := name_fault(self.metadata.name, most=63, dots=True):
            return [Cause("FieldValueInvalid", fault, "metadata.name")]
        return []

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation is Operation.STATUS and request.user.node not in (None, self.metadata.name):
            raise StatusError("Forbidden", f'node "{request.user.node}" may not write node "{self.metadata.name}"')
