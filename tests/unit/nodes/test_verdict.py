from dataclasses import replace
from typing import Any

import pytest

from horchestra.nodes.verdict import MACHINE_ID, Claim, decide
from proto import node_pb2 as pb

CLAIM = Claim(machine_id="m1", lineage="L1", revision=10, paused=False, known=True, first_used_by="m1")


HELD = {"metadata": {"name": "n1", "annotations": {MACHINE_ID: "m1"}}}


def accepting(lineage: str) -> dict[str, Any]:
    annotations = {**HELD["metadata"]["annotations"], "orch.ks-tool.dev/accept-lineage": lineage}  # type: ignore[dict-item]
    return {"metadata": {"name": "n1", "annotations": annotations}}


@pytest.mark.parametrize(
    ("claim", "stored", "verdict"),
    [
        (replace(CLAIM, lineage="", revision=0, first_used_by=""), None, pb.PROCEED),
        (CLAIM, HELD, pb.PROCEED),
        (replace(CLAIM, revision=20), HELD, pb.PROCEED),
        # Restored, copied, new: the node decides nothing, and neither do numbers.
        (replace(CLAIM, revision=21), HELD, pb.PAUSE),
        (replace(CLAIM, lineage="L2"), HELD, pb.PAUSE),
        (replace(CLAIM, paused=True), HELD, pb.PAUSE),
        (replace(CLAIM, lineage="L2"), accepting("L1"), pb.ACCEPT),
        (replace(CLAIM, revision=21), accepting("L1"), pb.ACCEPT),
        (replace(CLAIM, paused=True), accepting("L1"), pb.ACCEPT),
        (replace(CLAIM, lineage="L2"), accepting("L2"), pb.PAUSE),
        (CLAIM, accepting("L1"), pb.PROCEED),
        # Machines.
        (replace(CLAIM, machine_id="m2"), HELD, pb.DUPLICATE),
        (replace(CLAIM, machine_id="m2", first_used_by=""), HELD, pb.PROCEED),
        (replace(CLAIM, machine_id="m2", known=False, first_used_by=""), HELD, pb.DUPLICATE),
        (replace(CLAIM, machine_id="m2"), None, pb.DUPLICATE),
        # Certificates that this controller has not issued.
        (replace(CLAIM, known=False, first_used_by=""), None, pb.ADOPTION),
        (replace(CLAIM, known=False, first_used_by="", lineage="L2"), None, pb.ADOPTION),
        (replace(CLAIM, known=False, first_used_by=""), HELD, pb.PROCEED),
    ],
)
def test_what_a_node_is_told(claim: Claim, stored: dict[str, Any] | None, verdict: int) -> None:
    decision = decide(claim, stored, "L1", 20)
    assert pb.Verdict.Name(decision.verdict) == pb.Verdict.Name(verdict)
    assert (decision.reason == "") == (verdict == pb.PROCEED)


def test_an_adopted_node_of_another_lineage_pauses_next() -> None:
    adopted = {"metadata": {"name": "n1", "annotations": {"orch.ks-tool.dev/adopt": "true"}}}
    claim = replace(CLAIM, known=False, first_used_by="")
    assert decide(replace(claim, lineage=""), adopted, "L1", 20).verdict == pb.PROCEED
    assert decide(replace(claim, lineage="L2"), adopted, "L1", 20).verdict == pb.PAUSE
