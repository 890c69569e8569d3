"""What every object has, and the hooks a kind may override.

The stored object is JSON; a kind's class is a lens over it. For each write the store runs, in this order:
decode (JSON, unknown fields by `fieldValidation`) -> `prepare` -> defaults (from the schema) -> pydantic validation ->
`validate_object` / `validate_update(old)` -> `references` -> `admit` -> persist. Only `prepare` changes the object.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from .admission import AdmissionRequest, Reference
from .errors import Cause
from .registry import Resource


class Model(BaseModel):
    """A piece of an object. Field docstrings become the descriptions that `kubectl explain` prints."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True, populate_by_name=True, strict=True)


class OwnerReference(Model):
    apiVersion: str
    """API version of the owner."""
    kind: str
    """Kind of the owner."""
    name: str
    """Name of the owner."""
    uid: str
    """UID of the owner; a reference to an object with another uid is void."""
    controller: bool = False
    """True for the one owner that manages this object."""
    blockOwnerDeletion: bool = False
    """With foreground deletion the owner stays until this object is gone."""


class ObjectMeta(Model):
    """Metadata that every stored object has."""

    name: str = ""
    """Unique within a namespace (or the cluster); cannot be changed."""
    generateName: str = ""
    """Prefix for a name made by the server, used when name is empty."""
    namespace: str = ""
    """Namespace of the object; empty for cluster-scoped kinds."""
    uid: str = ""
    """Unique in time and space; set by the server."""
    resourceVersion: str = ""
    """The revision that last changed the object. Sent with a write it makes that write conditional."""
    generation: int = 0
    """Rises when spec changes; set by the server."""
    creationTimestamp: str | None = None
    """When the object was created (RFC 3339, UTC); set by the server."""
    deletionTimestamp: str | None = None
    """When deletion was asked for; the object goes when its finalizers are gone."""
    deletionGracePeriodSeconds: int | None = None
    """Seconds given to end gracefully."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Keys and values to select objects by."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Free keys and values kept with the object."""
    ownerReferences: list[OwnerReference] = Field(default_factory=list)
    """Objects this one belongs to; when all are gone it is collected."""
    finalizers: list[str] = Field(default_factory=list)
    """Who must agree before the object may go."""
    managedFields: list[dict[str, Any]] = Field(default_factory=list)
    """Which manager set which fields."""


class Condition(Model):
    """One observed aspect of an object's state."""

    type: str
    """CamelCase name of the aspect."""
    status: str
    """True, False or Unknown."""
    reason: str = ""
    """CamelCase reason of the last change, for machines."""
    message: str = ""
    """What it means and what to do, for people."""
    lastTransitionTime: str | None = None
    """When status last changed (RFC 3339)."""
    observedGeneration: int | None = None
    """The generation this condition speaks of."""


class APIObject(Model):
    """A kind. Subclass with `resource = Resource(...)`, `spec` and `status` models, and the hooks it needs."""

    resource: ClassVar[Resource]

    apiVersion: str = ""
    """Group and version of the kind's schema."""
    kind: str = ""
    """The kind's name."""
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    """Standard object metadata."""

    @classmethod
    def prepare(cls, obj: dict[str, Any]) -> None:
        """Brings the JSON into stored form, in place (a Secret's stringData into data). `obj` may still be invalid."""

    def validate_object(self) -> list[Cause]:
        """Rules that need the object alone; all violations at once."""
        return []

    def validate_update(self, old: Self) -> list[Cause]:
        """Rules between two versions: what cannot change."""
        return []

    def references(self) -> list[Reference]:
        """Other objects that this one names; generic rules do the rest (missing: a Warning; see Reference.holds)."""
        return []

    def admit(self, request: AdmissionRequest) -> None:
        """What must be refused at once, with the write lock held. Raises StatusError."""

    @classmethod
    def finalizers(cls) -> list[str]:
        """Finalizers the server puts on the object when it is created."""
        return []

    def forced(self) -> list[str]:
        """Finalizers that forced deletion (grace period 0) does not wait for: by default those of Horchestra itself
        that the object was created with. They are still on the object when `deleted` sees it."""
        return [name for name in self.finalizers() if name.startswith("orch.ks-tool.dev/")]

    def deleted(self, request: AdmissionRequest) -> None:
        """Runs in the transaction that removes the object for good (`force` included)."""
