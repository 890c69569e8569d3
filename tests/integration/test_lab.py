"""The lab is what it says: real systemd machines with a network that can be cut, gone without a trace afterwards."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.lab import estate
from tests.lab.caches import ALL_SUITES
from tests.lab.command import run
from tests.lab.estate import Estate
from tests.lab.images.catalogue import CATALOGUE, build
from tests.lab.images.layout import load
from tests.lab.network import LabNetwork
from tests.lab.node import Node
from tests.lab.nodes import Nodes
from tests.lab.paths import PROJECT, RUNS
from tests.lab.registry import Registry
from tests.lab.servers import PostgresServer, RedisServer

pytestmark = pytest.mark.node

IMPORTS = "import grpc, pydantic, dbus_fast, isal, zstandard, cryptography, yaml, agent, horchestra, proto"
POSTGRES = "library/postgres:18-alpine"
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
    node.exec("python3", "-c", IMPORTS)


@pytest.mark.long
@pytest.mark.parametrize("suite", ALL_SUITES)
def test_every_suite_boots_and_runs_the_agents_libraries(node_factory: Nodes, suite: str) -> None:
    node = node_factory.boot(suite=suite)
    assert f"VERSION_CODENAME={suite}" in node.exec("cat", "/etc/os-release").stdout
    node.exec("python3", "-c", IMPORTS)
    node.reboot()
    node.power_cut()


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


def unpack(node: Node, name: str) -> str:
    """An image's root file system as a plain directory, its layers over one another; returns its path in the node."""
    root = node.state / "rootfs"
    root.mkdir()
    for layer in load(build(name)).blobs[:-1]:
        blob = build(name) / "blobs/sha256" / layer.digest.removeprefix("sha256:")
        run("tar", "--extract", "--gzip", "--xattrs", "--numeric-owner", f"--file={blob}", f"--directory={root}")
    return "/var/lib/horchestra/rootfs"


def start_postgres(node: Node, root: str, *environment: str) -> None:
    path = "PATH=/usr/lib/postgresql/15/bin:/usr/bin:/bin"
    settings = [f"--setenv={setting}" for setting in (path, "PGDATA=/var/lib/postgresql/data", *environment)]
    place = ("--property=RootDirectory=" + root, "--property=MountAPIVFS=yes", "--property=RemainAfterExit=yes")
    node.exec("systemd-run", "--unit=db", *place, *settings, "/usr/local/bin/docker-entrypoint.sh", "postgres")


def query(node: Node, text: str, user: str, database: str, password: str) -> str:
    client = ("psql", "-h", node.address, "-U", user, "-d", database, "-w", "-Atc", text)
    return run(*client, check=False, env={**os.environ, "PGPASSWORD": password}).stdout.strip()


def wait_until(fact: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not (true := fact()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return true


def test_the_postgres_image_refuses_to_start_without_a_password(node: Node) -> None:
    start_postgres(node, unpack(node, POSTGRES))
    assert wait_until(lambda: "superuser password is not specified" in node.exec("journalctl", "-u", "db").stdout)
    assert wait_until(lambda: "ExecMainStatus=1\n" in node.exec("systemctl", "show", "db").stdout)


def test_the_postgres_image_takes_its_settings_from_the_environment(node: Node) -> None:
    root = unpack(node, POSTGRES)
    (node.state / "rootfs/secret").write_text("sesame\n")
    (node.state / "rootfs/docker-entrypoint-initdb.d/1.sql").write_text("create table goods (n int);")
    start_postgres(node, root, "POSTGRES_PASSWORD_FILE=/secret", "POSTGRES_USER=keeper", "POSTGRES_DB=shop")
    assert wait_until(lambda: query(node, "select 1", "keeper", "shop", "sesame") == "1")
    assert query(node, "select count(*) from goods", "keeper", "shop", "sesame") == "0"
    assert query(node, "select 1", "keeper", "shop", "wrong") == ""
    assert query(node, "show data_directory", "keeper", "shop", "sesame") == "/var/lib/postgresql/data"


def test_the_registry_serves_its_images_to_other_clients(registry: Registry) -> None:
    for name in CATALOGUE:
        run("skopeo", "inspect", "--tls-verify=false", f"docker://{registry.endpoint}/{name}")


def test_one_image_is_an_index_for_two_architectures(registry: Registry) -> None:
    described = run("skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{registry.endpoint}/lab/no-user:1")
    platforms = [entry["platform"]["architecture"] for entry in json.loads(described.stdout)["manifests"]]
    assert sorted(platforms) == ["amd64", "arm64"]


def test_images_of_the_hub_share_their_base_layer() -> None:
    first, second = (load(build(name)).blobs[0].digest for name in (POSTGRES, "library/redis:8"))
    assert first == second


def test_a_crashed_postgres_comes_back_with_its_data(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database("crash")
    with psycopg.connect(url) as connection:
        connection.execute("create table kept (n int)")
    postgres_server.crash()
    postgres_server.start()
    with psycopg.connect(url) as connection:
        assert connection.execute("select count(*) from kept").fetchone() == (0,)


def test_redis_answers(redis_server: RedisServer) -> None:
    assert run("redis-cli", "-u", redis_server.url, "ping").stdout == "PONG\n"
