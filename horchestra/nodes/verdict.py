"""What a node that says hello is told. Pure: the rules of lineage, duplicates and adoption in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from horchestra.kinds.node import ACCEPT_LINEAGE, ADOPT
from proto import node_pb2 as pb

MACHINE_ID = "orch.ks-tool.dev/machine-id"
"""Annotation of a Node: the machine that holds its name. Only the controller writes it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the node says of itself, and what this controller's table says of its certificate."""

    machine_id: str
    lineage: str
    revision: int
    paused: bool
    known: bool
    """The certificate is in the table of issued ones."""
    first_used_by: str
    """machine-id that used it first, "" while nobody has."""


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: pb.Verdict
    reason: str = ""
    message: str = ""


def decide(claim: Claim, node: dict[str, Any] | None, lineage: str, revision: int) -> Decision:
    """`node`: the stored Node, None when there is none; `lineage` and `revision` are the controller's."""
    annotations = ((node or {}).get("metadata") or {}).get("annotations") or {}
    holder = annotations.get(MACHINE_ID, "")
    if _duplicate(claim, holder):
        other = holder if holder != claim.machine_id else claim.first_used_by
        return Decision(
            pb.DUPLICATE,
            "DuplicateNode",
            f"machine {claim.machine_id} shows the certificate of a node that is machine {other}; give it a name of "
            "its own, or, if it replaces that machine, join it with a new bundle",
        )
    if not claim.known and not holder and annotations.get(ADOPT) != "true":
        return Decision(
            pb.ADOPTION,
            "AwaitingAdoption",
            "the certificate is valid but this controller has not issued it; nothing on the node is changed until "
            f"an administrator adopts it: kubectl annotate node NAME {ADOPT}=true",
        )
    return _lineage(claim, annotations.get(ACCEPT_LINEAGE, ""), lineage, revision)


def _duplicate(claim: Claim, holder: str) -> bool:
    if not holder or holder == claim.machine_id:
        # A bundle that another machine has joined with does not make this one that node.
        return bool(claim.first_used_by) and claim.first_used_by != claim.machine_id
    # Another machine holds the name: only a bundle that was made later, and that nobody has used, hands it over.
    return not claim.known or claim.first_used_by != ""


def _lineage(claim: Claim, accepted: str, lineage: str, revision: int) -> Decision:
    if not claim.lineage:
        return Decision(pb.PROCEED)
    other = claim.lineage != lineage
    older = not other and claim.revision > revision
    if not (claim.paused or other or older):
        return Decision(pb.PROCEED)
    if accepted == lineage:
        return Decision(pb.ACCEPT, "LineageAccepted", f"an administrator accepted lineage {lineage}")
    if other:
        why = f"the node follows lineage {claim.lineage}, this controller's is {lineage} (restored, copied or new data)"
        return Decision(pb.PAUSE, "LineageDiffers", why)
    if older:
        why = f"the node follows revision {claim.revision}, this controller is at {revision} (older data was restored)"
        return Decision(pb.PAUSE, "RevisionBehind", why)
    return Decision(pb.PAUSE, "StillPaused", "the node paused earlier and nobody has accepted this data yet")
