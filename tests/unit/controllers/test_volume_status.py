from typing import Any

from horchestra.controllers.persistentvolume import stated


def volume(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "data", "uid": "u1"}, "spec": {"size": "1Gi", "node": "n1", **spec}, "status": {}}


def report(uid: str, name: str = "data") -> dict[str, Any]:
    return {"uid": uid, "name": name, "path": f"/v/{uid}", "bytes": 42, "phase": "Bound", "quota_enforced": False}


def node(*reports: dict[str, Any]) -> dict[str, Any]:
    return {"status": {"volumes": list(reports)}}


def test_a_volume_waits_for_its_node() -> None:
    status = stated(volume(), [], None)["status"]
    assert (status["phase"], status["reason"]) == ("Pending", "NodeNotRegistered")


def test_a_volume_is_bound_while_an_application_mounts_it() -> None:
    assert stated(volume(), ["default/db"], node())["status"]["phase"] == "Bound"
    assert stated(volume(), [], node())["status"]["phase"] == "Available"


def test_where_it_lies_and_what_it_takes_come_from_the_node() -> None:
    status = stated(volume(), [], node(report("u1")))["status"]
    assert (status["path"], status["usedBytes"]) == ("/v/u1", 42)
    assert {c["type"]: c["status"] for c in status["conditions"]} == {"QuotaEnforced": "False"}


def test_whether_its_size_is_enforced_comes_from_the_node() -> None:
    for enforced, words in ((True, ("True", "ProjectQuota")), (False, ("False", "NotSupported"))):
        reports = node(report("u1") | {"quota_enforced": enforced})
        (condition,) = stated(volume(), [], reports)["status"]["conditions"]
        assert (condition["status"], condition["reason"]) == words
        assert enforced or "no project quota can be set" in condition["message"]


def test_kept_data_of_a_former_volume_of_the_name_is_pointed_out_with_the_line_that_takes_it_back() -> None:
    (condition,) = stated(volume(), [], node(report("old")))["status"]["conditions"]
    assert condition["type"] == "PreviousData"
    assert "spec.adopt: old" in condition["message"]


def test_a_volume_that_takes_data_back_is_not_called_empty() -> None:
    assert stated(volume(adopt="old"), [], node(report("old"), report("older")))["status"]["conditions"] == []
    reports = node(report("u1"), report("older"))
    adopted = stated(volume(adopt="old"), [], reports)
    for obj in (adopted, stated({**adopted, "spec": volume()["spec"]}, [], reports)):
        assert {c["type"] for c in obj["status"]["conditions"]} == {"Adopted", "QuotaEnforced"}


def test_a_volume_that_is_being_deleted_names_its_users() -> None:
    going = volume()
    going["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    status = stated(going, ["default/db", "team/db"], node())["status"]
    assert status["phase"] == "Terminating"
    assert "default/db, team/db" in status["message"]


def test_use_that_was_not_measured_yet_is_not_called_zero() -> None:
    kept, mine = report("old") | {"bytes": None}, report("u1") | {"bytes": None}
    status = stated(volume(), [], node(kept, mine))["status"]
    (previous,) = [c for c in status["conditions"] if c["type"] == "PreviousData"]
    assert "(uid old)" in previous["message"]
    assert "usedBytes" not in status


def test_a_volume_that_took_data_back_says_so_even_when_its_spec_no_longer_does() -> None:
    adopted = stated(volume(adopt="old"), [], node(report("u1")))
    later = stated({**adopted, "spec": volume()["spec"]}, [], node(report("u1")))
    for obj in (adopted, later):
        (condition,) = [c for c in obj["status"]["conditions"] if c["type"] == "Adopted"]
        assert condition["status"] == "True"
        assert "kept of old" in condition["message"]
