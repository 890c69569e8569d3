from typing import Any

from horchestra.controllers.application import Verdict, stated

READY = Verdict(True, "WaitingForNode", "node has not yet reported")


def app(**status: Any) -> dict[str, Any]:
    meta = {"name": "web", "namespace": "default", "uid": "u1"}
    return {"kind": "Application", "metadata": meta, "spec": {"nodeName": "n1"}, "status": status}


def test_a_waiting_application_is_told_why() -> None:
    status = stated(app(), "u1", Verdict(False, "Unscheduled", "no node"))["status"]
    assert (status["phase"], status["reason"], status["message"]) == ("Pending", "Unscheduled", "no node")
    assert status["node"] == ""


def test_the_nodes_words_stay_while_it_runs() -> None:
    running = app(phase="Running", node="n1", restartCount=3, message="fine")
    status = stated(running, "u1", READY)["status"]
    assert (status["phase"], status["message"], status["restartCount"]) == ("Running", "fine", 3)


def test_a_reason_of_the_nodes_own_is_not_overwritten_while_pending() -> None:
    status = stated(app(phase="Pending", reason="SecretMissing", node="n1"), "u1", READY)["status"]
    assert status["reason"] == "SecretMissing"


def test_a_reason_that_node_and_controller_share_stays_when_the_node_has_said_it() -> None:
    said = app(phase="Pending", reason="PortConflict", message="held by pid 7", node="n1", observedGeneration=1)
    assert stated(said, "u1", READY)["status"]["message"] == "held by pid 7"
    mine = app(phase="Pending", reason="PortConflict", message="taken by application", node="")
    assert stated(mine, "u1", READY)["status"]["reason"] == "WaitingForNode"


def test_a_moved_application_forgets_what_its_old_node_said() -> None:
    moved = app(phase="Running", node="n0", addresses=["10.0.0.1"], restartCount=3)
    status = stated(moved, "u1", READY)["status"]
    assert (status["phase"], status["node"], status.get("addresses")) == ("Pending", "n1", None)
    assert status["restartCount"] == 3


def test_an_application_whose_node_was_deleted_is_unknown_and_keeps_its_place() -> None:
    status = stated(app(phase="Running", node="n1"), "u1", Verdict(True, "NodeNotRegistered", "gone"))["status"]
    assert (status["phase"], status["reason"], status["node"]) == ("Unknown", "NodeNotRegistered", "n1")


def test_another_object_of_the_name_and_one_that_is_going_are_left_alone() -> None:
    other = app(phase="Running")
    assert stated(other, "u2", READY) is other
    other["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    assert stated(other, "u1", READY) is other


def test_saying_the_same_again_changes_nothing() -> None:
    once = stated(app(), "u1", READY)
    assert stated(once, "u1", READY) == once
