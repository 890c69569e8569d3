"""What creating a PersistentVolume says about data that lies on its node already."""

from __future__ import annotations

from typing import Any

from horchestra.apimachinery.admission import SYSTEM, AdmissionRequest, Operation
from horchestra.kinds.persistentvolume import PersistentVolume

KEPT = {"uid": "old", "name": "data", "path": "/var/lib/horchestra/volumes/old", "bytes": 4096}
NODE = {"kind": "Node", "metadata": {"name": "n1"}, "status": {"volumes": [KEPT]}}


class View:
    def __init__(self, **objects: Any) -> None:
        self.objects = objects

    def get(self, target: str, namespace: str, name: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.objects.get(target.partition(".")[0], {}).get(name)
        return found

    def list(self, target: str, namespace: str | None = None) -> list[dict[str, Any]]:
        return list(self.objects.get(target.partition(".")[0], {}).values())

    def referrers(self, target: str, namespace: str, name: str) -> list[dict[str, Any]]:
        return []


def warnings(view: View, name: str = "data", **spec: Any) -> list[str]:
    """What creating the volume warns of."""
    said: list[str] = []
    volume = PersistentVolume.model_validate(
        {"metadata": {"name": name, "uid": "new"}, "spec": {"size": "1Gi", "node": "n1", **spec}}
    )
    volume.admit(
        AdmissionRequest(
            Operation.CREATE, SYSTEM, PersistentVolume.resource, view, None, False, said.append, lambda obj: None
        )
    )
    return said


def test_kept_data_of_the_same_name_is_named_with_the_line_that_takes_it_back() -> None:
    (said,) = warnings(View(nodes={"n1": NODE}))
    assert "spec.adopt: old" in said


def test_adopting_it_warns_of_nothing() -> None:
    assert warnings(View(nodes={"n1": NODE}), adopt="old") == []


def test_data_of_another_name_and_data_about_to_be_removed_warn_of_nothing() -> None:
    assert warnings(View(nodes={"n1": NODE}), name="other") == []
    removal = {"kind": "NodeRemoval", "spec": {"deleteData": True}}
    assert warnings(View(nodes={"n1": NODE}, noderemovals={"old.n1": removal})) == []
