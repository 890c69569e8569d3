"""One controller with two joined nodes for all tests here, and a namespace of its own for each test."""

import itertools
import re
from collections.abc import Iterator

import pytest

from tests.e2e.controller import Controller
from tests.e2e.machine import Machine, joined
from tests.e2e.site import Site, Space
from tests.lab.network import LabNetwork
from tests.lab.nodes import Nodes
from tests.lab.registry import Registry

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="package")
def site(lab_network: LabNetwork, lab_nodes: Nodes, registry: Registry) -> Iterator[Site]:
    controller = Controller(lab_network.estate.directory / "controller", lab_network.address)
    controller.start()
    machines = joined(lab_nodes, controller, registry.endpoint, ("sav-01", "sav-02"))
    yield Site(controller, machines, registry)
    for machine in machines:
        machine.remove()
    controller.stop()


@pytest.fixture
def machine(site: Site) -> Machine:
    """The node sav-01."""
    return site.machines["sav-01"]


@pytest.fixture
def space(site: Site, request: pytest.FixtureRequest) -> Iterator[Space]:
    """A namespace named after the test; deleted, with all in it, when the test ends."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())
    made = site.space(f"{name[:40].strip('-')}-{next(_NUMBERS)}")
    yield made
    made.kubectl("delete", "namespace", made.namespace, "--wait=false")
