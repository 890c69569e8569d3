"""A node that the tests of one module share, with the runtime running in it."""

from collections.abc import Iterator

import pytest

from tests.integration.agent.rig import Rig
from tests.lab.nodes import Nodes
from tests.lab.registry import Registry


@pytest.fixture(scope="module")
def rig(lab_nodes: Nodes, registry: Registry) -> Iterator[Rig]:
    made = Rig(lab_nodes, registry)
    made.start_agent()
    yield made
    made.close()
