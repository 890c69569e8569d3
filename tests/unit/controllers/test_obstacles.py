from typing import Any

from horchestra.controllers.placement import obstacles

NODE = {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "4", "memory": "4Gi"}}}


def app(name: str, age: int = 0, *, on: bool = False, phase: str = "Pending", **spec: Any) -> dict[str, Any]:
    scheduled = [{"type": "Scheduled", "status": "True"}] if on else []
    return {
        "kind": "Application",
        "metadata": {
            "name": name, "namespace": "default", "uid": name, "creationTimestamp": f"2030-01-01T00:00:{age:02}Z",
        },
        "spec": {"nodeName": "n1", **spec},
        "status": {"phase": phase, "node": "n1" if on else "", "conditions": scheduled},
    }  # fmt: skip


def cpu(amount: str) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": amount}}}


def reasons(application: dict[str, Any], *others: dict[str, Any], volumes: dict[str, Any] | None = None) -> list[str]:
    return [c.reason for c in obstacles(application, [application, *others], NODE, volumes or {})]


def test_what_is_on_the_node_stays_even_if_it_is_younger() -> None:
    assert reasons(app("old", 1, **cpu("3")), app("young", 9, on=True, **cpu("2"))) == ["OutOfCapacity"]


def test_of_those_that_wait_the_oldest_goes_first() -> None:
    old, young = app("old", 1, ports=[{"port": 80}]), app("young", 2, ports=[{"port": 80}])
    assert reasons(old, young) == []
    assert reasons(young, old) == ["PortConflict"]


def test_of_those_made_in_the_same_second_the_name_decides() -> None:
    a, b = app("a", 1, ports=[{"port": 80}]), app("b", 1, ports=[{"port": 80}])
    assert (reasons(a, b), reasons(b, a)) == ([], ["PortConflict"])


def test_an_older_one_that_cannot_go_is_in_nobodys_way() -> None:
    assert reasons(app("young", 2, ports=[{"port": 80}]), app("old", 1, ports=[{"port": 80}], **cpu("9"))) == []


def test_an_older_one_that_is_being_deleted_does_not_go_first() -> None:
    old = app("old", 1, ports=[{"port": 80}])
    old["metadata"]["deletionTimestamp"] = "2030-01-01T00:01:00Z"
    assert reasons(app("young", 2, ports=[{"port": 80}]), old) == []


def test_finished_jobs_hold_nothing() -> None:
    assert reasons(app("new", 9, **cpu("4")), app("job", 1, on=True, phase="Succeeded", **cpu("4"))) == []


def test_a_volume_must_exist_and_not_be_going() -> None:
    mounts = {"volumeMounts": [{"pv": "data", "path": "/data"}]}
    assert reasons(app("db", **mounts)) == ["VolumeNotFound"]
    going = {"metadata": {"name": "data", "deletionTimestamp": "x"}, "spec": {"node": "n1"}}
    assert reasons(app("db", **mounts), volumes={"data": going}) == ["VolumeTerminating"]
    there = {"metadata": {"name": "data"}, "spec": {"node": "n1"}}
    assert reasons(app("db", **mounts), volumes={"data": there}) == []
    assert reasons(app("db", 2, **mounts), app("db0", 1, on=True, **mounts), volumes={"data": there}) == ["VolumeInUse"]
    shared = {"metadata": {"name": "data"}, "spec": {"node": "n1", "shared": True}}
    assert reasons(app("db", 2, **mounts), app("db0", 1, on=True, **mounts), volumes={"data": shared}) == []
    elsewhere = {"metadata": {"name": "data"}, "spec": {"node": "n2"}}
    assert reasons(app("db", **mounts), volumes={"data": elsewhere}) == ["VolumeElsewhere"]
