"""NodeRemoval: what a node has still to remove although its object is gone or has moved."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from horchestra.apimachinery.meta import APIObject, Model
from horchestra.apimachinery.registry import Column, Resource


class NodeRemovalSpec(Model):
    node: str
    """Node that has to remove it."""
    kind: Literal["Application", "PersistentVolume"]
    """Kind of what was deleted."""
    namespace: str = ""
    """Namespace it had."""
    name: str
    """Name it had."""
    uid: str
    """UID it had; the node removes by this alone."""
    deleteData: bool = False
    """Remove the volume's directory too (reclaimPolicy Delete)."""


class NodeRemoval(APIObject):
    """What a node has still to remove. Made by the server, and gone when the node confirms."""

    resource = Resource(
        group="orch.ks-tool.dev",
        version="v1",
        kind="NodeRemoval",
        plural="noderemovals",
        singular="noderemoval",
        namespaced=False,
        verbs=("delete", "get", "list", "watch"),
        columns=(
            Column("Node", lambda o: o["spec"]["node"], description="Node that has to remove it"),
            Column("Kind", lambda o: o["spec"]["kind"], description="Kind of what was deleted"),
            Column("Object", lambda o: "/".join(filter(None, (o["spec"].get("namespace"), o["spec"]["name"])))),
        ),
        field_selectors={"spec.node": "spec.node"},
    )

    spec: NodeRemovalSpec = Field(default=...)
    """What to remove, and where."""
