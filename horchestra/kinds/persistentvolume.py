"""PersistentVolume: a directory on one node, kept unless somebody says otherwise by name."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from horchestra.apimachinery import quantity
from horchestra.apimachinery.admission import AdmissionRequest, Operation, Reference
from horchestra.apimachinery.desired import node_removal
from horchestra.apimachinery.errors import Cause, invalid
from horchestra.apimachinery.meta import APIObject, Condition, Model
from horchestra.apimachinery.names import is_dns1123_subdomain
from horchestra.apimachinery.registry import Column, Resource


class PersistentVolumeSpec(Model):
    size: str | int
    """Space it counts for on the node's disk, as 10Gi."""
    node: str
    """Node that holds the directory; cannot change."""
    reclaimPolicy: Literal["Retain", "Delete"] = "Retain"
    """Retain keeps the directory when the volume is deleted; Delete removes it with the data."""
    shared: bool = False
    """False: one application at a time. True: any number of applications of the node."""
    adopt: str = ""
    """UID of a deleted volume whose kept directory on the same node this volume takes back; may be left out later."""


class PersistentVolumeStatus(Model):
    phase: Literal["Pending", "Available", "Bound", "Terminating"] = "Pending"
    """Bound: an application mounts it. Available: none does."""
    path: str = ""
    """Directory on the node."""
    usedBytes: int | None = None
    """Measured use."""
    users: list[str] = Field(default_factory=list)
    """Applications that mount it (namespace/name)."""
    conditions: list[Condition] = Field(default_factory=list)
    """Adopted, PreviousData, QuotaEnforced, ..."""
    reason: str = ""
    """CamelCase reason of the phase."""
    message: str = ""
    """What it means and what to do."""


def _phase(obj: dict[str, Any]) -> str:
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return str(obj.get("status", {}).get("phase", "Pending"))


class PersistentVolume(APIObject):
    """A directory on one node that applications mount. It outlives them, restarts and reboots."""

    resource = Resource(
        group="orch.ks-tool.dev",
        version="v1",
        kind="PersistentVolume",
        plural="persistentvolumes",
        singular="persistentvolume",
        namespaced=False,
        short_names=("pv",),
        status=True,
        columns=(
            Column("Size", lambda o: str(o["spec"].get("size", "")), description="Space it counts for"),
            Column("Node", lambda o: o["spec"].get("node", ""), description="Node that holds it"),
            Column(
                "Reclaim", lambda o: o["spec"].get("reclaimPolicy", "Retain"), description="What deletion does to data"
            ),
            Column("Status", _phase, description="Pending, Available, Bound or Terminating"),
            Column("Used by", lambda o: ",".join(o.get("status", {}).get("users", [])), description="Applications"),
            Column(
                "Path", lambda o: o.get("status", {}).get("path", ""), wide=True, description="Directory on the node"
            ),
        ),
        field_selectors={"spec.node": "spec.node", "status.phase": "status.phase"},
    )

    spec: PersistentVolumeSpec = Field(default=...)
    """Where the volume is and how it is kept."""
    status: PersistentVolumeStatus = Field(default_factory=PersistentVolumeStatus)
    """Observed state of the volume."""

    def validate_object(self) -> list[Cause]:
        causes = []
        try:
            if quantity.byte_count(self.spec.size) <= 0:
                causes.append(Cause("FieldValueInvalid", "must be more than 0", "spec.size"))
        except ValueError as error:
            causes.append(Cause("FieldValueInvalid", str(error), "spec.size"))
        if not is_dns1123_subdomain(self.spec.node):
            causes.append(Cause("FieldValueInvalid", f"{self.spec.node!r} is not the name of a node", "spec.node"))
        return causes

    def validate_update(self, old: PersistentVolume) -> list[Cause]:
        causes = []
        if self.spec.node != old.spec.node:
            causes.append(Cause("FieldValueInvalid", "field is immutable: the data is on that node", "spec.node"))
        if self.spec.adopt != old.spec.adopt and (fault := self._adoption_fault(old)):
            causes.append(Cause("FieldValueInvalid", fault, "spec.adopt"))
        return causes

    def _adoption_fault(self, old: PersistentVolume) -> str:
        """Left out too early, the node would make an empty directory instead; afterwards it means nothing."""
        before = old.spec.adopt
        if self.spec.adopt:
            holds = f"takes back the data of {before}" if before else "has a directory of its own"
            return f"only a new volume can adopt data, and this one {holds}; create another volume to adopt with"
        if any(c.type == "Adopted" and c.status == "True" for c in old.status.conditions):
            return ""
        return f"can be removed once node {old.spec.node} has taken back the data of {before} (condition Adopted)"

    def references(self) -> list[Reference]:
        return [Reference("nodes", "", self.spec.node, "spec.node")]

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation not in (Operation.CREATE, Operation.UPDATE):
            return
        if request.old is not None and request.old["spec"].get("size") == self.spec.size:
            return
        causes = self._disk(request)
        if causes:
            raise invalid(self.resource.group, self.resource.kind, self.metadata.name, causes)
        if request.operation is Operation.CREATE and not self.spec.adopt:
            self._warn_of_kept_data(request)

    def _warn_of_kept_data(self, request: AdmissionRequest) -> None:
        """What the node holds under this name is an earlier volume's, as this one has not been there yet."""
        node = request.view.get("nodes", "", self.spec.node) or {}
        for kept in (node.get("status") or {}).get("volumes") or []:
            if kept["name"] != self.metadata.name or kept["uid"] == self.metadata.uid:
                continue
            removal = request.view.get("noderemovals.orch.ks-tool.dev", "", f"{kept['uid']}.{self.spec.node}")
            if removal is None or not removal["spec"].get("deleteData"):
                request.warn(
                    f"data of a deleted volume of this name is kept on node {self.spec.node} (uid {kept['uid']}); this "
                    f"volume starts empty. To take the data back, create it with spec.adopt: {kept['uid']}"
                )

    def _disk(self, request: AdmissionRequest) -> list[Cause]:
        node = request.view.get("nodes", "", self.spec.node)
        disk = (node or {}).get("status", {}).get("capacity", {}).get("ephemeral-storage")
        if disk is None:
            return []
        others = {
            o["metadata"]["name"]: quantity.byte_count(o["spec"]["size"])
            for o in request.view.referrers("nodes", "", self.spec.node)
            if o["kind"] == self.resource.kind and o["metadata"]["name"] != self.metadata.name
        }
        whole = quantity.byte_count(disk)
        free = whole - sum(others.values())
        if quantity.byte_count(self.spec.size) <= free:
            return []
        message = (
            f"{self.spec.size} does not fit on node {self.spec.node}: {max(free, 0) >> 20}Mi of {whole >> 20}Mi are "
            f"not yet promised to {len(others)} other volume(s)"
        )
        return [Cause("FieldValueInvalid", message, "spec.size")]

    def deleted(self, request: AdmissionRequest) -> None:
        request.store(
            node_removal(
                self.spec.node,
                self.resource.kind,
                "",
                self.metadata.name,
                self.metadata.uid,
                delete_data=self.spec.reclaimPolicy == "Delete",
            )
        )
