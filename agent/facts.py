"""What the node is and has: the status part of its Node object."""

import json
import os
import platform
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

from agent.probes import Abilities

VERSION = "0.1.0"
_RESERVED_MEMORY = 256 << 20
"""Bytes not promised to applications: the host itself and the agent."""
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


def node_status(abilities: Abilities, state_dir: Path) -> dict[str, Any]:
    """horchestra.kinds.node.NodeStatus without Ready, which is the controller's word. Blocks on small reads."""
    memory = _memory_bytes()
    cpus = len(os.sched_getaffinity(0))
    disk = shutil.disk_usage(state_dir).total
    return {
        "capacity": {"cpu": str(cpus), "memory": str(memory), "ephemeral-storage": str(disk)},
        "allocatable": {
            "cpu": str(cpus),
            "memory": str(max(memory - _RESERVED_MEMORY, 0)),
            "ephemeral-storage": str(disk),
        },
        "addresses": [
            *({"type": "InternalIP", "address": address} for address in addresses()),
            {"type": "Hostname", "address": socket.gethostname()},
        ],
        "conditions": _conditions(abilities),
        "nodeInfo": {
            "machineID": _read("/etc/machine-id"),
            "bootID": boot_id(),
            "systemUUID": _read("/sys/class/dmi/id/product_uuid"),
            "kernelVersion": platform.release(),
            "osImage": _os_name(),
            "operatingSystem": "linux",
            "architecture": _MACHINES.get(platform.machine(), platform.machine()),
            "containerRuntimeVersion": f"systemd://{abilities.systemd}",
            "kubeletVersion": f"horchestra-{VERSION}",
            "kubeProxyVersion": "",
        },
    }


def boot_id() -> str:
    """Changes with each boot."""
    return _read("/proc/sys/kernel/random/boot_id")


def addresses() -> list[str]:
    """The host's own global addresses, IPv4 first, as `ip addr` lists them; loopback and link-local are left out."""
    try:
        output = subprocess.run(
            ["ip", "-json", "address", "show", "up", "scope", "global"], capture_output=True, timeout=5, check=True
        ).stdout
        links = json.loads(output or b"[]")
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
    found = [
        (info.get("family"), info["local"])
        for link in links
        for info in link.get("addr_info", [])
        if "local" in info and not info.get("temporary") and not info.get("deprecated")
    ]
    return [address for family, address in sorted(found, key=lambda item: item[0] != "inet")]


def _conditions(abilities: Abilities) -> list[dict[str, Any]]:
    weak = [
        text
        for enforced, text in (
            (abilities.memory_limit, "memory limits"),
            (abilities.cpu_limit, "CPU limits"),
        )
        if not enforced
    ]
    sealed = abilities.sealed_secrets
    return [
        {
            "type": "LimitsEnforced",
            "status": "False" if weak else "True",
            "reason": "NotEnforced" if weak else "Probed",
            "message": f"this host does not enforce {' and '.join(weak)}: its control groups lack them" if weak else "",
        },
        {
            "type": "SecretsSealed",
            "status": "True" if sealed else "False",
            "reason": "SystemdCreds" if sealed else "PlainFiles",
            "message": "" if sealed else "secrets lie on this host in files that only root reads: no systemd-creds",
        },
    ]


def _memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _os_name() -> str:
    for line in _read("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return "Linux"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
