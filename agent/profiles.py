"""The three degrees of confinement, as directives of the systemd that runs on the node.

package: as a distribution's package runs, but in its own root. hardened: the default, made so that the images of the
public hubs run. sandbox: never root, no execution of writable memory, own user namespace.
A directive that a systemd does not know it ignores with a warning, so each names the version it came with.
"""

from collections.abc import Iterable
from typing import Literal

Profile = Literal["package", "hardened", "sandbox"]

ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETUID", "SETGID", "KILL")
"""What an image that starts as root needs to prepare its directories and become another user."""

_ALWAYS: tuple[tuple[str, str, int], ...] = (
    ("PrivateTmp", "yes", 0),
    ("PrivateDevices", "yes", 0),
    ("PrivateIPC", "yes", 249),
    ("KeyringMode", "private", 235),
    ("ProtectControlGroups", "yes", 232),
)
_HARDENED: tuple[tuple[str, str, int], ...] = (
    ("NoNewPrivileges", "yes", 0),
    ("ProtectSystem", "strict", 232),
    ("ProtectHostname", "yes", 242),
    ("ProtectClock", "yes", 245),
    ("ProtectKernelTunables", "yes", 232),
    ("ProtectKernelModules", "yes", 232),
    ("ProtectKernelLogs", "yes", 244),
    ("ProtectProc", "invisible", 247),
    ("RestrictSUIDSGID", "yes", 242),
    ("RestrictRealtime", "yes", 231),
    ("RestrictNamespaces", "yes", 233),
    ("LockPersonality", "yes", 235),
    ("SystemCallArchitectures", "native", 0),
    ("SystemCallErrorNumber", "EPERM", 0),
)
_SANDBOX: tuple[tuple[str, str, int], ...] = (
    ("PrivateUsers", "yes", 232),
    ("ProcSubset", "pid", 247),
    ("MemoryDenyWriteExecute", "yes", 231),
    ("DevicePolicy", "closed", 0),
)
_CALLS: dict[Profile, tuple[str, ...]] = {
    "package": (),
    "hardened": ("@system-service", "~process_vm_readv process_vm_writev kcmp"),
    "sandbox": (
        "@system-service",
        "~@privileged @resources @mount @debug @cpu-emulation @obsolete @keyring",
        "~process_vm_readv process_vm_writev kcmp",
    ),
}
_FAMILIES: dict[Profile, str] = {
    "package": "",
    "hardened": "AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "sandbox": "AF_UNIX AF_INET AF_INET6",
}
_MASK: dict[Profile, str] = {"package": "0022", "hardened": "0022", "sandbox": "0077"}


def directives(profile: Profile, version: int, *, own_processes: bool, low_port: bool) -> list[tuple[str, str]]:
    """Directives of [Service] but for capabilities.

    own_processes: a probe showed that PrivatePIDs= works here. low_port: a port below 1024 is declared; in a user
    namespace the capability to bind it means nothing to the host's network, so that one is left out then.
    """
    table = [*_ALWAYS]
    if profile != "package":
        table += _HARDENED
    if profile == "sandbox":
        table += [line for line in _SANDBOX if not (low_port and line[0] == "PrivateUsers")]
    lines = [(name, value) for name, value, since in table if version >= since]
    if own_processes:
        lines.append(("PrivatePIDs", "yes"))
    lines += [("SystemCallFilter", calls) for calls in _CALLS[profile]]
    if _FAMILIES[profile]:
        lines.append(("RestrictAddressFamilies", _FAMILIES[profile]))
    lines.append(("UMask", _MASK[profile]))
    return lines


def capabilities(profile: Profile, *, root: bool, low_port: bool, drop: Iterable[str]) -> list[tuple[str, str]]:
    """Bounding and ambient set. `low_port`: a port below 1024 is declared."""
    dropped = {name.upper().removeprefix("CAP_") for name in drop}
    low = ("NET_BIND_SERVICE",) if low_port and not dropped & {"NET_BIND_SERVICE", "ALL"} else ()
    ambient = [("AmbientCapabilities", _names(low))] if low and not root else []
    if profile == "package":
        if "ALL" in dropped:
            return [("CapabilityBoundingSet", ""), *ambient]
        return [*([("CapabilityBoundingSet", "~" + _names(sorted(dropped)))] if dropped else []), *ambient]
    kept = [] if not root or "ALL" in dropped else [name for name in ROOT_CAPABILITIES if name not in dropped]
    return [("CapabilityBoundingSet", _names([*kept, *low])), *ambient]


def _names(capabilities: Iterable[str]) -> str:
    return " ".join(f"CAP_{name}" for name in capabilities)
