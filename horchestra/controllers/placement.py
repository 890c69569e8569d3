"""May an application go to the node it names? What is there stays; of those that wait the oldest goes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from horchestra.kinds.placement import Conflict, conflicts
from horchestra.nodes.index import placed

Json = dict[str, Any]


def obstacles(application: Json, on_node: Sequence[Json], node: Json, volumes: Mapping[str, Json]) -> list[Conflict]:
    """Everything in the way of `application` on `node`; nothing when it may go there.

    `on_node`: all applications that name the node. An application that cannot go there itself is in nobody's way.
    """
    me = application["metadata"]["uid"]
    missing = _missing(application, volumes)
    if missing:
        return missing
    there = [a for a in on_node if a["metadata"]["uid"] != me and placed(a)]
    waiting = [a for a in on_node if a["metadata"]["uid"] != me and not placed(a) and _age(a) < _age(application)]
    for older in sorted(waiting, key=_age):
        going = bool(older["metadata"].get("deletionTimestamp"))
        if not going and not _missing(older, volumes) and not _conflicts(older, there, node, volumes):
            there.append(older)
    return _conflicts(application, there, node, volumes)


def _conflicts(application: Json, there: Sequence[Json], node: Json, volumes: Mapping[str, Json]) -> list[Conflict]:
    users = {name: [a for a in there if name in mounted(a)] for name in mounted(application)}
    return conflicts(application, there, node, volumes, users)


def _missing(application: Json, volumes: Mapping[str, Json]) -> list[Conflict]:
    found = []
    for name in sorted(mounted(application)):
        volume = volumes.get(name)
        if volume is None:
            found.append(Conflict("VolumeNotFound", "spec.volumeMounts", f'volume "{name}" not found'))
        elif volume["metadata"].get("deletionTimestamp"):
            found.append(Conflict("VolumeTerminating", "spec.volumeMounts", f'volume "{name}" is being deleted'))
    return found


def mounted(application: Json) -> set[str]:
    """Names of the volumes that an application mounts."""
    return {m["pv"] for m in application["spec"].get("volumeMounts") or [] if m.get("pv")}


def _age(application: Json) -> tuple[str, str, str]:
    """Creation is known to the second; of those made within one the name decides."""
    meta = application["metadata"]
    return meta.get("creationTimestamp") or "", meta.get("namespace", ""), meta["name"]
