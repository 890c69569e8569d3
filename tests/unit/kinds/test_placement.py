"""Who may share a node."""

from __future__ import annotations

from typing import Any

from horchestra.kinds.placement import conflicts

NODE = {"status": {"allocatable": {"cpu": "2", "memory": "2Gi"}}}


def app(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"nodeName": "n1", **spec}}


def request(cpu: str) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}}


def test_a_port_conflict_names_the_holder() -> None:
    (found,) = conflicts(app("a", ports=[{"port": 80}]), [app("b", ports=[{"port": 80}])], NODE, {}, {})
    assert (found.reason, found.field) == ("PortConflict", "spec.ports[0].port")
    assert found.message == '80/TCP on node n1 is taken by application "b"'


def test_the_same_port_of_another_protocol_is_free() -> None:
    assert (
        conflicts(app("a", ports=[{"port": 53}]), [app("b", ports=[{"port": 53, "protocol": "UDP"}])], NODE, {}, {})
        == []
    )


def test_requests_add_up_to_the_nodes_capacity() -> None:
    assert conflicts(app("a", **request("500m")), [app("b", **request("1500m"))], NODE, {}, {}) == []
    (found,) = conflicts(app("a", **request("501m")), [app("b", **request("1500m"))], NODE, {}, {})
    assert found.reason == "OutOfCapacity"
    assert "500m of 2000m are free" in found.message


def test_what_is_free_and_what_there_is_are_said_in_one_unit() -> None:
    node = {"status": {"allocatable": {"memory": "24422400Ki"}}}
    big, other = ({"resources": {"requests": {"memory": amount}}} for amount in ("23Gi", "1Gi"))
    (found,) = conflicts(app("a", **big), [app("b", **other)], node, {}, {})
    assert "22826Mi of 23850Mi are free" in found.message


def test_a_finished_job_holds_nothing() -> None:
    job = app("b", ports=[{"port": 80}], **request("2")) | {"status": {"phase": "Succeeded"}}
    assert conflicts(app("a", ports=[{"port": 80}], **request("2")), [job], NODE, {}, {}) == []


def test_an_application_is_not_in_its_own_way() -> None:
    me = app("a", ports=[{"port": 80}], **request("2"))
    assert conflicts(me, [me], NODE, {}, {}) == []


def test_a_volume_is_for_one_application_unless_shared() -> None:
    me, other = app("a", volumeMounts=[{"pv": "v", "path": "/d"}]), app("b", volumeMounts=[{"pv": "v", "path": "/d"}])
    volume = {"spec": {"node": "n1"}}
    (found,) = conflicts(me, [], NODE, {"v": volume}, {"v": [other]})
    assert (found.reason, found.field) == ("VolumeInUse", "spec.volumeMounts[0].pv")
    assert 'application "b"' in found.message
    assert conflicts(me, [], NODE, {"v": {"spec": {"node": "n1", "shared": True}}}, {"v": [other]}) == []


def test_a_volume_cannot_be_mounted_on_another_node() -> None:
    me = app("a", volumeMounts=[{"pv": "v", "path": "/d"}])
    assert [c.reason for c in conflicts(me, [], NODE, {"v": {"spec": {"node": "n2"}}}, {"v": []})] == [
        "VolumeElsewhere"
    ]


def test_an_unknown_node_has_no_limits_yet() -> None:
    assert conflicts(app("a", **request("64")), [], None, {}, {}) == []
