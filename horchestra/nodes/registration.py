"""The Node object as the controller writes it: made at the first join, judged at each hello, marked when it is lost."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from horchestra.apimachinery.admission import SYSTEM
from horchestra.kinds.node import ACCEPT_LINEAGE, Node
from horchestra.pki import nodes as certificates
from horchestra.pki.nodes import NodeCertificate
from horchestra.storage.options import WriteOptions
from horchestra.storage.store import Store
from horchestra.storage.transaction import Transaction
from proto import node_pb2 as pb

from .bounds import cut
from .conditions import condition, find, merge
from .nodestatus import BadReport, reported
from .verdict import MACHINE_ID, Claim, Decision, decide

log = logging.getLogger("horchestra.nodes")

WRITE = WriteOptions(user=SYSTEM, field_validation="Ignore", field_manager="horchestra-nodes")


@dataclass(frozen=True, slots=True)
class Greeting:
    decision: Decision
    lineage: str
    revision: int


async def greet(store: Store, certificate: NodeCertificate, hello: pb.Hello, peer: str) -> Greeting:
    """Judge a hello and store what follows from it, in one transaction. Raises StatusError when the store cannot."""
    record = await asyncio.to_thread(certificates.lookup, certificate)
    revision = await store.watch.caught_up()
    lineage = store.lineage
    claim = Claim(
        machine_id=cut(hello.machine_id, 64),
        lineage=cut(hello.lineage, 64),
        revision=hello.revision,
        paused=hello.paused,
        known=record is not None,
        first_used_by=record.machine_id if record else "",
    )

    node_json = hello.node_json
    try:
        reported({}, node_json)
    except BadReport as error:
        log.warning("node %s: %s", certificate.node, error)
        node_json = b""

    def write(transaction: Transaction) -> Decision:
        current = transaction.get("nodes", "", certificate.node)
        decision = decide(claim, current, lineage, revision)
        if current is None:
            fresh = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": certificate.node}}
            current = transaction.create(Node, fresh, WRITE).obj
        _store(transaction, current, decision, claim, hello, node_json, peer, lineage)
        return decision

    decision = await store.transaction(write)
    if decision.verdict in (pb.PROCEED, pb.PAUSE, pb.ACCEPT) and record is not None and not record.machine_id:
        await asyncio.to_thread(certificates.bind, certificate, claim.machine_id)
    return Greeting(decision, lineage, revision)


def _store(
    transaction: Transaction,
    node: dict[str, Any],
    decision: Decision,
    claim: Claim,
    hello: pb.Hello,
    node_json: bytes,
    peer: str,
    lineage: str,
) -> None:
    name = node["metadata"]["name"]
    if decision.verdict == pb.DUPLICATE:
        found = condition("DuplicateNode", "True", "DuplicateNode", f"{decision.message} (seen from {peer})")
        _write_conditions(transaction, name, [found])
        return
    if decision.verdict != pb.ADOPTION:
        annotations = {MACHINE_ID: claim.machine_id}
        if decision.verdict == pb.PROCEED:
            annotations[ACCEPT_LINEAGE] = ""
        annotate(transaction, name, annotations, only={ACCEPT_LINEAGE: lineage})

    def change(obj: dict[str, Any]) -> dict[str, Any]:
        status = reported(obj.get("status") or {}, node_json)
        status["conditions"] = merge(status.get("conditions", []), _conditions(node, decision, claim, lineage))
        status["lineage"] = claim.lineage
        info = {"kubeletVersion": f"horchestra-{cut(hello.agent_version, 64)}", **status.get("nodeInfo", {})}
        status["nodeInfo"] = {**info, "machineID": claim.machine_id, "bootID": cut(hello.boot_id, 64)}
        return {**obj, "status": status}

    transaction.update(Node, "", name, change, WRITE, subresource="status")


def _conditions(obj: dict[str, Any], decision: Decision, claim: Claim, lineage: str) -> list[dict[str, Any]]:
    found = [condition("Ready", "True", "NodeReady", "the agent is connected")]
    if decision.verdict == pb.ADOPTION:
        message = decision.message.replace(" NAME ", f" {obj['metadata']['name']} ")
        found.append(condition("Adopted", "False", decision.reason, message))
    elif not claim.known or find(obj, "Adopted"):
        found.append(condition("Adopted", "True", "Adopted"))
    if decision.verdict in (pb.PAUSE, pb.ACCEPT):
        found.append(paused(decision, obj, lineage, ""))
    elif find(obj, "ConflictPaused"):
        found.append(condition("ConflictPaused", "False", "Following"))
    duplicate = find(obj, "DuplicateNode")
    holder = (obj["metadata"].get("annotations") or {}).get(MACHINE_ID)
    if duplicate and holder != claim.machine_id:
        found.append(
            condition("DuplicateNode", "False", "Rejoined", f"machine {claim.machine_id} joined with a new bundle")
        )
    return found


def paused(decision: Decision, node: dict[str, Any], lineage: str, preview: str) -> dict[str, Any]:
    """Condition ConflictPaused of a Node with what would change and the line that accepts it."""
    change = f" Once accepted, the node {preview}." if preview else ""
    given = (node["metadata"].get("annotations") or {}).get(ACCEPT_LINEAGE, lineage)
    line = f"kubectl annotate node {node['metadata']['name']} {ACCEPT_LINEAGE}={lineage}"
    wrong = ""
    if given != lineage:
        line += " --overwrite"
        wrong = f' The annotation says "{cut(given, 64)}", which accepts nothing: the lineage expected is {lineage}.'
    message = f"{decision.message}. Nothing on the node is changed.{change}{wrong} To accept: {line}"
    return condition("ConflictPaused", "True", decision.reason, message)


def annotate(transaction: Transaction, node: str, values: dict[str, str], only: dict[str, str] | None = None) -> None:
    """Set annotations of a Node; "" removes one. `only`: values that a removed annotation must have had."""

    def change(obj: dict[str, Any]) -> dict[str, Any]:
        before = obj["metadata"].get("annotations") or {}
        annotations = dict(before)
        for key, value in values.items():
            if value:
                annotations[key] = value
            elif only is None or annotations.get(key) == only.get(key):
                annotations.pop(key, None)
        return obj if annotations == before else {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}

    transaction.update(Node, "", node, change, WRITE)


def _write_conditions(transaction: Transaction, node: str, conditions: list[dict[str, Any]]) -> None:
    def change(obj: dict[str, Any]) -> dict[str, Any]:
        status = obj.get("status") or {}
        return {**obj, "status": {**status, "conditions": merge(status.get("conditions") or [], conditions)}}

    transaction.update(Node, "", node, change, WRITE, subresource="status")


async def write_conditions(store: Store, node: str, conditions: list[dict[str, Any]]) -> None:
    """Set conditions of a Node; nothing is written when nothing changes."""
    await store.transaction(lambda transaction: _write_conditions(transaction, node, conditions))


async def follows(store: Store, node: str, lineage: str) -> None:
    """The node has taken a desired state of this lineage; a permission to do so is used up. Nothing is written when
    that was known."""
    entry = store.watch.get(Node, "", node)
    if entry is None or ((entry.obj.get("status") or {}).get("lineage") == lineage and not _is_paused(entry.obj)):
        return

    def change(obj: dict[str, Any]) -> dict[str, Any]:
        status = obj.get("status") or {}
        conditions = status.get("conditions") or []
        if _is_paused(obj):
            conditions = merge(conditions, [condition("ConflictPaused", "False", "LineageAccepted")])
        return {**obj, "status": {**status, "conditions": conditions, "lineage": lineage}}

    def write(transaction: Transaction) -> None:
        annotate(transaction, node, {ACCEPT_LINEAGE: ""}, only={ACCEPT_LINEAGE: lineage})
        transaction.update(Node, "", node, change, WRITE, subresource="status")

    await store.transaction(write)


def _is_paused(node: dict[str, Any]) -> bool:
    return (find(node, "ConflictPaused") or {}).get("status") == "True"
