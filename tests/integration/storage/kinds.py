"""Small kinds to try the store's generic rules with."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from horchestra.apimachinery.admission import AdmissionRequest, Operation, Reference
from horchestra.apimachinery.errors import Cause, StatusError
from horchestra.apimachinery.meta import APIObject, Model
from horchestra.apimachinery.registry import Registry, Resource
from horchestra.kinds.namespace import Namespace

GROUP = "test.example"
WIDGETS = f"widgets.{GROUP}"


class WidgetSpec(Model):
    size: int = Field(default=1, ge=0, le=100)
    """How large it is."""
    color: Literal["red", "green"] = "red"
    """What it looks like."""
    note: str = ""
    """Free text."""
    uses: list[str] = Field(default_factory=list)
    """Widgets that it cannot do without."""
    mentions: list[str] = Field(default_factory=list)
    """Widgets that it names without need."""


class WidgetStatus(Model):
    seen: int = 0
    """How often it was looked at."""


class Widget(APIObject):
    """A thing with a spec and a status."""

    resource = Resource(
        group=GROUP, version="v1", kind="Widget", plural="widgets", singular="widget", short_names=("w",), status=True
    )
    spec: WidgetSpec = Field(default=...)
    """What it should be."""
    status: WidgetStatus = Field(default_factory=WidgetStatus)
    """What it is."""

    def validate_object(self) -> list[Cause]:
        if self.spec.note == "forbidden":
            return [Cause("FieldValueInvalid", "must not be said", "spec.note")]
        return []

    def validate_update(self, old: Widget) -> list[Cause]:
        if old.spec.color != self.spec.color:
            return [Cause("FieldValueInvalid", "field is immutable", "spec.color")]
        return []

    def references(self) -> list[Reference]:
        namespace = self.metadata.namespace
        return [
            *(Reference(WIDGETS, namespace, n, f"spec.uses[{i}]", holds=True) for i, n in enumerate(self.spec.uses)),
            *(Reference(WIDGETS, namespace, n, f"spec.mentions[{i}]") for i, n in enumerate(self.spec.mentions)),
        ]

    def admit(self, request: AdmissionRequest) -> None:
        total = sum(o["spec"].get("size", 0) for o in request.view.list(WIDGETS) if not self._is(o))
        placed = request.operation in (Operation.CREATE, Operation.UPDATE)
        if placed and self.spec.note == "admitted" and total + self.spec.size > 100:
            raise StatusError("Forbidden", f"{total + self.spec.size} is more than 100")
        if self.spec.note == "undeletable" and request.operation is Operation.DELETE:
            raise StatusError("Forbidden", "it stays")
        if self.spec.note == "companion" and request.operation is Operation.CREATE:
            request.store(_companion(self.metadata.namespace, self.metadata.name, "created"))

    def deleted(self, request: AdmissionRequest) -> None:
        if self.spec.note == "companion":
            request.store(_companion(self.metadata.namespace, self.metadata.name, "gone"))

    def _is(self, obj: dict[str, Any]) -> bool:
        return bool(obj["metadata"]["uid"] == self.metadata.uid)


def _companion(namespace: str, name: str, note: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Widget",
        "metadata": {"name": f"{name}-companion", "namespace": namespace},
        "spec": {"note": note},
    }


class Vault(APIObject):
    """A thing whose content is nobody's business."""

    resource = Resource(
        group=GROUP, version="v1", kind="Vault", plural="vaults", singular="vault", namespaced=False, encrypted=True
    )
    content: dict[str, str] = Field(default_factory=dict)
    """What is in it."""


class Anchor(APIObject):
    """A thing that goes only when the server lets go of it."""

    resource = Resource(group=GROUP, version="v1", kind="Anchor", plural="anchors", singular="anchor", namespaced=False)

    @classmethod
    def finalizers(cls) -> list[str]:
        return ["orch.ks-tool.dev/test"]


def registry() -> Registry:
    found = Registry()
    for cls in (Namespace, Widget, Vault, Anchor):
        found.add(cls)
    return found


def widget(name: str, namespace: str = "default", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


def owned(name: str, *owners: dict[str, Any], block: bool = False, **spec: Any) -> dict[str, Any]:
    """A widget with owner references to stored widgets."""
    obj = widget(name, **spec)
    obj["metadata"]["ownerReferences"] = [
        {
            "apiVersion": o["apiVersion"],
            "kind": o["kind"],
            "name": o["metadata"]["name"],
            "uid": o["metadata"]["uid"],
            **({"blockOwnerDeletion": True} if block else {}),
        }
        for o in owners
    ]
    return obj
