"""What keeps an application off a node: capacity, ports, volumes. Pure rules over stored JSON.

Admission asks before a write is stored; the application controller asks again when what was unknown appears.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from horchestra.apimachinery import quantity

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conflict:
    reason: str
    """OutOfCapacity | PortConflict | VolumeInUse | VolumeElsewhere"""
    field: str
    message: str


def finished(application: Json) -> bool:
    """A finished job holds no ports, capacity or volumes."""
    return application.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _key(obj: Json) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _called(obj: Json) -> str:
    namespace, name = _key(obj)
    return f'application "{name}"' if namespace == "default" else f'application "{namespace}/{name}"'


def requested(application: Json, resource: str) -> Decimal:
    """The request, or the limit where only that is set, as Kubernetes counts."""
    resources = application["spec"].get("resources", {})
    text = resources.get("requests", {}).get(resource, resources.get("limits", {}).get(resource, 0))
    return quantity.parse(text)


def conflicts(
    application: Json,
    on_node: Iterable[Json],
    node: Json | None,
    volumes: Mapping[str, Json],
    users: Mapping[str, Iterable[Json]],
) -> list[Conflict]:
    """Everything in the way of `application` on its node.

    `on_node`: applications that name the node; `volumes`: the existing volumes it mounts, by name; `users`: for each of
    them the applications that mount it. The application itself and finished jobs are passed over.
    """
    me = _key(application)
    others = [o for o in on_node if _key(o) != me and not finished(o)]
    return [
        *_ports(application, others),
        *_capacity(application, others, node),
        *_volumes(application, volumes, users),
    ]


def _ports(application: Json, others: list[Json]) -> list[Conflict]:
    wanted = {port["port"] for port in application["spec"].get("ports") or []}
    if not wanted:
        return []
    taken = {
        (p["port"], p.get("protocol", "TCP")): other
        for other in others
        for p in other["spec"].get("ports") or ()
        if p["port"] in wanted
    }
    node = application["spec"].get("nodeName")
    return [
        Conflict(
            "PortConflict",
            f"spec.ports[{i}].port",
            f"{port['port']}/{port.get('protocol', 'TCP')} on node {node} is taken by {_called(holder)}",
        )
        for i, port in enumerate(application["spec"].get("ports") or [])
        if (holder := taken.get((port["port"], port.get("protocol", "TCP"))))
    ]


def _capacity(application: Json, others: list[Json], node: Json | None) -> list[Conflict]:
    allocatable = (node or {}).get("status", {}).get("allocatable", {})
    found = []
    for resource in ("cpu", "memory"):
        if resource not in allocatable or not (asked := requested(application, resource)):
            continue
        whole = quantity.parse(allocatable[resource])
        free = whole - sum(requested(o, resource) for o in others)
        if asked > free:
            resources = application["spec"]["resources"]
            text = resources.get("requests", {}).get(resource) or resources["limits"][resource]
            message = (
                f"{text} {resource} do not fit on node {application['spec']['nodeName']}: {_amount(free, resource)} of "
                f"{_amount(whole, resource)} are free beside {len(others)} other application(s)"
            )
            found.append(Conflict("OutOfCapacity", f"spec.resources.requests.{resource}", message))
    return found


def _amount(value: Decimal, resource: str) -> str:
    value = max(value, Decimal(0))
    return f"{int(value * 1000)}m" if resource == "cpu" else f"{int(value / 2**20)}Mi"


def _volumes(application: Json, volumes: Mapping[str, Json], users: Mapping[str, Iterable[Json]]) -> list[Conflict]:
    found = []
    me, node = _key(application), application["spec"].get("nodeName")
    for i, mount in enumerate(application["spec"].get("volumeMounts") or []):
        name = mount.get("pv")
        volume = volumes.get(name) if name else None
        if volume is None:
            continue
        path = f"spec.volumeMounts[{i}].pv"
        if volume["spec"]["node"] != node:
            message = f'volume "{name}" is on node {volume["spec"]["node"]}, the application on {node}'
            found.append(Conflict("VolumeElsewhere", path, message))
        if volume["spec"].get("shared"):
            continue
        holders = [o for o in users.get(name, ()) if _key(o) != me and not finished(o)]
        if holders:
            message = (
                f'volume "{name}" is mounted by {_called(holders[0])}; set its spec.shared or wait until it is free'
            )
            found.append(Conflict("VolumeInUse", path, message))
    return found
