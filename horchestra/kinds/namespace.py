"""Namespace (core/v1)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from horchestra.apimachinery.errors import Cause
from horchestra.apimachinery.meta import APIObject, Model
from horchestra.apimachinery.names import name_fault
from horchestra.apimachinery.registry import Column, Resource

FINALIZER = "kubernetes"


class NamespaceSpec(Model):
    finalizers: list[str] = Field(default_factory=list)
    """Kept for clients of Kubernetes; deletion is governed by metadata.finalizers."""


class NamespaceStatus(Model):
    phase: Literal["Active", "Terminating"] = "Active"
    """Terminating: the applications and objects in it are being removed."""


class Namespace(APIObject):
    """A scope for names. Deleting it stops and removes its applications; volumes are cluster-scoped and stay."""

    resource = Resource(
        group="",
        version="v1",
        kind="Namespace",
        plural="namespaces",
        singular="namespace",
        namespaced=False,
        short_names=("ns",),
        status=True,
        strategic_merge=True,
        columns=(
            Column(
                "Status",
                lambda o: "Terminating" if o["metadata"].get("deletionTimestamp") else "Active",
                description="Active or Terminating",
            ),
        ),
        field_selectors={"status.phase": "status.phase"},
    )

    spec: NamespaceSpec = Field(default_factory=NamespaceSpec)
    """Behaviour of the namespace."""
    status: NamespaceStatus = Field(default_factory=NamespaceStatus)
    """Observed state of the namespace."""

    def validate_object(self) -> list[Cause]:
        if fault := name_fault(self.metadata.name, most=63):
            return [Cause("FieldValueInvalid", fault, "metadata.name")]
        return []

    @classmethod
    def finalizers(cls) -> list[str]:
        return [FINALIZER]
