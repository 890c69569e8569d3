"""Fixtures that give tests the lab's parts; `tests/conftest.py` makes them known everywhere.

The run is prepared before the first test: caches are built while the network is still there, then the whole pytest
process moves into the run's own network namespace.
"""

import os
from collections.abc import Iterator

import pytest

from tests.lab import caches
from tests.lab.estate import Estate
from tests.lab.images.catalogue import push_all
from tests.lab.network import LabNetwork
from tests.lab.node import Node
from tests.lab.nodes import Nodes
from tests.lab.registry import Registry
from tests.lab.servers import PostgresServer, RedisServer

_NETWORK = pytest.StashKey[LabNetwork]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the caches and enter the run's namespace, if any of the chosen tests is marked `node`."""
    if not any(item.get_closest_marker("node") for item in session.items) or session.config.option.collectonly:
        return
    if os.geteuid() != 0:
        raise pytest.UsageError(
            "tests marked `node` make namespaces and mounts: run them as root, or use -m 'not node'"
        )
    long = any(item.get_closest_marker("long") for item in session.items)
    caches.build_all(caches.ALL_SUITES if long else caches.QUICK_SUITES)
    network = LabNetwork(Estate.fresh())
    session.config.stash[_NETWORK] = network
    network.up()
    network.enter()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove the run with everything in it."""
    network = session.config.stash.get(_NETWORK, None)
    if network is not None:
        network.estate.close()


@pytest.fixture(scope="session")
def lab_network(request: pytest.FixtureRequest) -> LabNetwork:
    """The bridge on which the nodes hang; `address` is this side of it. The test must be marked `node`."""
    network = request.config.stash.get(_NETWORK, None)
    if network is None:
        raise pytest.UsageError(f"{request.node.nodeid} uses the lab's network but no chosen test is marked `node`")
    return network


@pytest.fixture(scope="session")
def lab_nodes(lab_network: LabNetwork) -> Nodes:
    """The maker of nodes for fixtures that keep a node over several tests."""
    return Nodes(lab_network)


@pytest.fixture
def node_factory(lab_network: LabNetwork, lab_nodes: Nodes) -> Iterator[Nodes]:
    """The maker of nodes for one test: what it makes is removed when the test ends."""
    before = set(lab_nodes)
    yield lab_nodes
    for node in set(lab_nodes) - before:
        lab_nodes.remove(node)


@pytest.fixture
def node(node_factory: Nodes) -> Node:
    """A fresh booted node `sav-01` for one test."""
    return node_factory.boot()


@pytest.fixture(scope="session")
def registry(lab_network: LabNetwork) -> Iterator[Registry]:
    """A registry on the bridge's address, port 5000, that holds the whole catalogue of images."""
    server = Registry(lab_network.estate.directory / "registry", lab_network.address)
    server.start()
    push_all(server.endpoint)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running PostgreSQL; `create_database(name)` gives a test one of its own."""
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A running Redis."""
    server = RedisServer()
    server.start()
    yield server
    server.remove()
