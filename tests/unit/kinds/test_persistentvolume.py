"""What creating a PersistentVolume says about data that lies on its node already."""

from __future__ import annotations

from typing import Any

import pytest

from horchestra.apimachinery.admission import SYSTEM, AdmissionRequest, Operation
from horchestra.apimachinery.errors import StatusError
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


def changed(before: str, after: str, *, adopted: bool = False, node: str = "n1") -> list[tuple[str, str]]:
    """What changing spec.adopt is answered with."""

    def volume(adopt: str, node: str) -> PersistentVolume:
        conditions = [{"type": "Adopted", "status": "True"}] if adopted else []
        return PersistentVolume.model_validate({
            "metadata": {"name": "data", "uid": "new"},
            "spec": {"size": "1Gi", "node": node, "adopt": adopt},
            "status": {"conditions": conditions},
        })  # fmt: skip

    return [(c.field, c.message) for c in volume(after, node).validate_update(volume(before, "n1"))]


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


def test_adopting_warns_of_nothing_whatever_else_of_the_name_is_kept() -> None:
    more = {**NODE, "status": {"volumes": [KEPT, {**KEPT, "uid": "older"}]}}
    assert warnings(View(nodes={"n1": more}), adopt="old") == []


def test_data_of_another_name_and_data_about_to_be_removed_warn_of_nothing() -> None:
    assert warnings(View(nodes={"n1": NODE}), name="other") == []
    removal = {"kind": "NodeRemoval", "spec": {"deleteData": True}}
    assert warnings(View(nodes={"n1": NODE}, noderemovals={"old.n1": removal})) == []


def test_the_manifest_without_adopt_can_be_applied_once_the_data_was_taken_back() -> None:
    assert changed("old", "", adopted=True) == []
    ((field, message),) = changed("old", "")
    assert field == "spec.adopt"
    assert "can be removed once node n1 has taken back the data of old" in message


def test_a_volume_cannot_adopt_other_data_than_at_its_creation() -> None:
    for before in ("old", ""):
        ((field, message),) = changed(before, "older", adopted=True)
        assert field == "spec.adopt"
        assert "only a new volume can adopt data" in message
        assert "the data is on that node" not in message


def test_a_volume_that_does_not_fit_says_what_is_left_in_one_unit() -> None:
    node = {**NODE, "status": {"capacity": {"ephemeral-storage": "2097152Ki"}}}
    with pytest.raises(StatusError, match="3Gi does not fit on node n1: 2048Mi of 2048Mi are not yet promised"):
        warnings(View(nodes={"n1": node}), size="3Gi")


def test_a_volume_stays_on_its_node() -> None:
    assert changed("", "", node="n2") == [("spec.node", "field is immutable: the data is on that node")]
