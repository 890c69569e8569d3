"""What travels between controller and node as JSON: desired state, volume reports, stream requests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Wire(BaseModel):
    model_config = ConfigDict(extra="ignore")


class SecretData(Wire):
    """A Secret or ConfigMap that applications of the node name."""

    kind: str
    """Secret | ConfigMap"""
    namespace: str
    name: str
    uid: str
    type: str = ""
    data: dict[str, str] = Field(default_factory=dict)
    """Key to value, base64 as in a Secret's data (ConfigMap values and binaryData alike)."""
    missing: bool = False
    """Was deleted or never existed: keep the last values, say SecretMissing."""


class Removal(Wire):
    """Something that must go from this node: deleted, moved away or force-deleted."""

    kind: str
    """Application | PersistentVolume"""
    namespace: str = ""
    name: str
    uid: str
    grace_seconds: int | None = None
    """None: the application's own terminationGracePeriodSeconds."""
    delete_data: bool = False
    """PersistentVolume with reclaimPolicy Delete only."""


def node_removal(
    node: str, kind: str, namespace: str, name: str, uid: str, *, delete_data: bool = False
) -> dict[str, Any]:
    """The NodeRemoval object for what `node` has still to remove; its name makes it unique per uid and node."""
    return {
        "apiVersion": "orch.ks-tool.dev/v1",
        "kind": "NodeRemoval",
        "metadata": {"name": f"{uid}.{node}"},
        "spec": {
            "node": node,
            "kind": kind,
            "namespace": namespace,
            "name": name,
            "uid": uid,
            "deleteData": delete_data,
        },
    }


class DesiredState(Wire):
    """The whole truth for one node. `applications` and `volumes` are objects as stored, reduced to
    apiVersion, kind, metadata.{name,namespace,uid,generation,annotations} and spec."""

    applications: list[dict[str, Any]] = Field(default_factory=list)
    volumes: list[dict[str, Any]] = Field(default_factory=list)
    secrets: list[SecretData] = Field(default_factory=list)
    removals: list[Removal] = Field(default_factory=list)
    registry_credentials: dict[str, list[str]] = Field(default_factory=dict)
    """Application uid to names of Secrets (in its namespace, present in `secrets`) to pull with."""


class VolumeReport(Wire):
    """A volume directory found on a node."""

    uid: str
    name: str = ""
    path: str = ""
    bytes: int | None = None
    """Use on disk; None until it was measured."""
    phase: str = ""
    """Bound | Available | Retained (the object is gone, the data is kept)"""
    quota_enforced: bool = False


class LogRequest(Wire):
    """Which lines of an application's journal, as `pods/log` asks."""

    uid: str
    namespace: str
    name: str
    follow: bool = False
    tail_lines: int | None = None
    since_seconds: int | None = None
    since_time: str | None = None
    """RFC 3339."""
    timestamps: bool = False
    previous: bool = False
    limit_bytes: int | None = None
