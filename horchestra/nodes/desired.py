"""What one node should look like: its applications, what they name, and what must go. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from horchestra.apimachinery.desired import DesiredState, Removal, SecretData
from horchestra.kinds.application import NODE_FINALIZER

from .index import NodeIndex, Target, placed, targets

_ANNOTATIONS = ("orch.ks-tool.dev/", "kubectl.kubernetes.io/restartedAt")
"""Annotations that mean something to a node; the rest (kubectl's copy of the manifest, say) stays here."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A desired state as it goes on the wire. `digest` is the SHA-256 of `body`, in hexadecimal."""

    body: bytes
    digest: str
    removals: int


def desired_state(index: NodeIndex, node: str) -> DesiredState:
    """Only what is this node's: applications placed on it, its volumes, the Secrets and ConfigMaps they name.

    An application that is being deleted is a removal; so is what a NodeRemoval names, unless it came back.
    """
    applications = index.applications(node)
    staying = [e for e in applications if not e.obj["metadata"].get("deletionTimestamp") and placed(e.obj)]
    living = [e.obj for e in staying]
    removals = [_leaving(e.obj) for e in applications if _to_leave(e.obj)]
    uids = {a["metadata"]["uid"] for a in living} | {r.uid for r in removals}
    removals += [_gone(e.obj) for e in index.removals(node) if e.obj["spec"]["uid"] not in uids]
    named = sorted({target for e in staying for target in targets(e)})
    return DesiredState(
        applications=[_reduced(a) for a in living],
        volumes=[_reduced(e.obj) for e in index.volumes(node)],
        secrets=[_values(index, target) for target in named],
        removals=sorted(removals, key=lambda r: r.uid),
        registry_credentials={
            a["metadata"]["uid"]: [s["name"] for s in a["spec"]["imagePullSecrets"]]
            for a in living
            if a["spec"].get("imagePullSecrets")
        },
    )


def encode(state: DesiredState) -> Encoded:
    """The same state always has the same bytes."""
    body = json.dumps(state.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    encoded = body.encode()
    return Encoded(encoded, hashlib.sha256(encoded).hexdigest(), len(state.removals))


def _reduced(obj: dict[str, Any]) -> dict[str, Any]:
    meta = obj["metadata"]
    annotations = {k: v for k, v in (meta.get("annotations") or {}).items() if k.startswith(_ANNOTATIONS)}
    kept = {key: meta[key] for key in ("name", "namespace", "uid", "generation") if key in meta}
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "metadata": {**kept, **({"annotations": annotations} if annotations else {})},
        "spec": obj["spec"],
    }


def _to_leave(obj: dict[str, Any]) -> bool:
    meta = obj["metadata"]
    return bool(meta.get("deletionTimestamp")) and NODE_FINALIZER in (meta.get("finalizers") or [])


def _leaving(obj: dict[str, Any]) -> Removal:
    meta = obj["metadata"]
    return Removal(
        kind=obj["kind"],
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta["uid"],
        grace_seconds=meta.get("deletionGracePeriodSeconds"),
    )


def _gone(obj: dict[str, Any]) -> Removal:
    spec = obj["spec"]
    return Removal(
        kind=spec["kind"],
        namespace=spec.get("namespace", ""),
        name=spec["name"],
        uid=spec["uid"],
        delete_data=spec.get("deleteData", False),
    )


def _values(index: NodeIndex, target: Target) -> SecretData:
    kind = "Secret" if target.kind == "secrets" else "ConfigMap"
    obj = index.get(target)
    if obj is None:
        return SecretData(kind=kind, namespace=target.namespace, name=target.name, uid="", missing=True)
    data = dict(obj.get("data") or {})
    if kind == "ConfigMap":
        data = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        data |= obj.get("binaryData") or {}
    return SecretData(
        kind=kind,
        namespace=target.namespace,
        name=target.name,
        uid=obj["metadata"]["uid"],
        type=obj.get("type", ""),
        data=data,
    )
