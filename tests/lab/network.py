"""The network that nodes hang on: one bridge, either in a namespace without a way out or in the machine's own.

Tests use a namespace (`isolated=True`): the pytest process itself moves into it (`enter`), so controller, registry and
kubectl of the run meet the nodes there, ports never collide between runs and no test reaches anything else.
The demo uses the machine's own namespace, so that node ports answer from the machine.
"""

import ctypes
import ipaddress
import json
import os
from pathlib import Path

from tests.lab.command import run
from tests.lab.estate import Estate

_CLONE_NEWNET = 0x40000000
_FIRST_NODE = 10
# Candidates for a bridge in the machine's own namespace; the first that overlaps no existing route is taken.
_SUBNETS = tuple(ipaddress.IPv4Network(f"10.{second}.0.0/24") for second in (77, 78, 177, 207, 233))


class LabNetwork:
    """A bridge with an address of its own (`address`) and room for nodes at `.10` and up."""

    def __init__(self, estate: Estate, *, isolated: bool = True) -> None:
        self.estate = estate
        self.isolated = isolated
        self.namespace = estate.name if isolated else None
        self.bridge = f"hbr-{estate.id}"
        self.subnet = _SUBNETS[0] if isolated else _free_subnet(self.bridge)
        self.address = str(self.subnet[1])

    def up(self) -> None:
        """Make namespace and bridge; what exists already is kept."""
        if self.namespace is not None and not Path(f"/run/netns/{self.namespace}").exists():
            run("ip", "netns", "add", self.namespace)
            self.ip("link", "set", "lo", "up")
        if self.ip("link", "show", self.bridge, check=False) != 0:
            self.ip("link", "add", self.bridge, "type", "bridge", "forward_delay", "0")
            self.ip("addr", "add", f"{self.address}/{self.subnet.prefixlen}", "dev", self.bridge)
            self.ip("link", "set", self.bridge, "up")

    def down(self) -> None:
        """Remove the bridge of the machine's own namespace; an isolated one goes with its estate."""
        if self.namespace is None:
            self.ip("link", "delete", self.bridge, check=False)

    def enter(self) -> None:
        """Move this process into the namespace; call it before any thread is started, for threads stay behind."""
        if self.namespace is None:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{self.namespace}") as handle:
            if libc.setns(handle.fileno(), _CLONE_NEWNET) != 0:
                number = ctypes.get_errno()
                raise OSError(number, f"setns to {self.namespace}: {os.strerror(number)}")

    def node_address(self, index: int) -> str:
        """The address of node number `index`, counted from 0."""
        return str(self.subnet[_FIRST_NODE + index])

    def attach(self, namespace: str, index: int) -> None:
        """Give a node's namespace its `host0` on the bridge, with its address and a default route to the bridge."""
        link, address = self.link(index), self.node_address(index)
        if self.ip("link", "show", link, check=False) == 0:
            return
        inside = ("ip", "-n", namespace)
        run(*inside, "link", "set", "lo", "up")
        self.ip("link", "add", link, "type", "veth", "peer", "name", "host0", "netns", namespace)
        self.ip("link", "set", link, "master", self.bridge, "up")
        run(*inside, "addr", "add", f"{address}/{self.subnet.prefixlen}", "dev", "host0")
        run(*inside, "link", "set", "host0", "up")
        run(*inside, "route", "add", "default", "via", self.address)

    def link(self, index: int) -> str:
        """The bridge's end of the wire to node number `index`."""
        return f"hv{index}-{self.estate.id}"

    def ip(self, *words: str, check: bool = True) -> int:
        """Run ip(8) where the bridge is; returns its exit code."""
        where = ("-n", self.namespace) if self.namespace is not None else ()
        return run("ip", *where, *words, check=check).returncode

    def command(self, *argv: str) -> tuple[str, ...]:
        """`argv` so that it runs where the bridge is, from outside the namespace."""
        return ("ip", "netns", "exec", self.namespace, *argv) if self.namespace is not None else argv


def _free_subnet(bridge: str) -> ipaddress.IPv4Network:
    """The subnet that the bridge has already, else the first candidate that no route of this machine overlaps."""
    taken: list[ipaddress.IPv4Network] = []
    for route in json.loads(run("ip", "-4", "-j", "route", "show").stdout or "[]"):
        if route["dst"] == "default":
            continue
        network = ipaddress.IPv4Network(route["dst"], strict=False)
        if route.get("dev") == bridge:
            return network
        taken.append(network)
    for subnet in _SUBNETS:
        if not any(subnet.overlaps(other) for other in taken):
            return subnet
    raise RuntimeError(f"no free subnet for bridge {bridge}: each of {', '.join(map(str, _SUBNETS))} is routed already")
