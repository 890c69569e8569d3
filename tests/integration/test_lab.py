"""The lab is what it says: real systemd machines with a network that can be cut, gone without a trace afterwards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import estate
from tests.lab.estate import Estate
from tests.lab.network import LabNetwork
from tests.lab.node import Node
from tests.lab.nodes import Nodes
from tests.lab.paths import PROJECT, RUNS

pytestmark = pytest.mark.node

MOUNT = "mount -t overlay o -o lowerdir=l,upperdir=u,workdir=w m"


def reaches(node: Node, address: str) -> bool:
    return node.exec("ping", "-c1", "-W1", address, check=False).returncode == 0


def traces(id: str) -> list[Path]:
    places = ((RUNS, id), (Path("/run/netns"), f"hlab-{id}*"), (Path("/sys/fs/cgroup"), f"*/hlab-{id}-*"))
    return [path for place, pattern in places for path in place.glob(pattern)]


def test_a_node_is_a_systemd_machine_with_its_own_name_and_address(node: Node) -> None:
    assert node.exec("systemctl", "is-system-running").stdout == "running\n"
    assert node.exec("hostname").stdout == "sav-01\n"
    assert node.address in node.exec("ip", "-4", "addr", "show", "host0").stdout
    assert node.exec("cat", "/proc/1/comm").stdout == "systemd\n"


def test_two_nodes_reach_each_other_and_nothing_outside(node_factory: Nodes) -> None:
    first, second = node_factory.boot("sav-01"), node_factory.boot("sav-02")
    assert reaches(first, second.address)
    # TEST-NET-1 of RFC 5737: the bridge has no way out, so the answer is an error or silence.
    assert not reaches(first, "192.0.2.1")


def test_a_memory_limit_is_enforced_inside_a_node(node: Node) -> None:
    hungry = ("python3", "-c", "b = bytearray(300 << 20); print(len(b))")
    limited = ("systemd-run", "--wait", "--pipe", "--quiet", "-p", "MemoryMax=64M", "-p", "MemorySwapMax=0")
    assert node.exec(*hungry).returncode == 0
    assert node.exec(*limited, *hungry, check=False).returncode != 0


def test_files_journal_and_machine_id_outlive_reboot_and_power_cut(node: Node) -> None:
    node.exec(
        "sh", "-c", "echo kept > /var/lib/horchestra/note; echo kept > /etc/note; logger before; journalctl --sync"
    )
    machine_id = node.exec("cat", "/etc/machine-id").stdout
    node.reboot()
    node.power_cut()
    assert "before" in node.journal()
    node.start()
    node.wait_ready()
    assert (
        node.exec("cat", "/var/lib/horchestra/note", "/etc/note", "/etc/machine-id").stdout
        == f"kept\nkept\n{machine_id}"
    )
    assert len(node.exec("journalctl", "--list-boots", "-o", "json").stdout.split("boot_id")) == 4


def test_a_cut_network_shows_no_carrier_and_heals(node: Node, lab_network: LabNetwork) -> None:
    node.cut()
    assert "NO-CARRIER" in node.exec("ip", "link", "show", "host0").stdout
    assert not reaches(node, lab_network.address)
    node.heal()
    assert reaches(node, lab_network.address)


def test_a_silent_drop_keeps_the_carrier_and_heals(node: Node, lab_network: LabNetwork) -> None:
    node.silent_drop()
    assert "NO-CARRIER" not in node.exec("ip", "link", "show", "host0").stdout
    assert not reaches(node, lab_network.address)
    node.heal()
    assert reaches(node, lab_network.address)


def test_a_node_can_carry_an_overlay_below_its_state_directory(node: Node) -> None:
    node.exec("sh", "-c", "cd /var/lib/horchestra && mkdir l u w m && echo low > l/f && " + MOUNT)
    assert node.exec("cat", "/var/lib/horchestra/m/f").stdout == "low\n"


def test_the_agents_libraries_import_in_a_node(node: Node) -> None:
    node.exec(
        "python3",
        "-c",
        "import grpc, pydantic, dbus_fast, isal, zstandard, cryptography, yaml, agent, horchestra, proto",
    )


def test_a_crashed_run_leaves_nothing_after_the_next_one_starts() -> None:
    crash = (
        "import os, signal\n"
        "from tests.lab.estate import Estate\n"
        "from tests.lab.network import LabNetwork\n"
        "from tests.lab.nodes import Nodes\n"
        "network = LabNetwork(Estate.fresh()); network.up(); Nodes(network).boot(agent=False)\n"
        "print(network.estate.id, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    crashed = subprocess.run([sys.executable, "-c", crash], cwd=PROJECT, capture_output=True, text=True, timeout=60)
    id = crashed.stdout.strip()
    assert traces(id), crashed.stderr
    Estate.fresh().close()
    assert traces(id) == []


def test_a_living_run_is_left_alone(lab_network: LabNetwork, node: Node) -> None:
    estate.remove_leftovers()
    assert node.running
    assert os.path.isdir(lab_network.estate.directory)
