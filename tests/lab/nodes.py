"""Makes nodes of one run, with addresses that do not collide and, by default, with what the agent needs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.lab.agent_runtime import agent_runtime, install_path
from tests.lab.network import LabNetwork
from tests.lab.node import Bind, Node
from tests.lab.paths import PROJECT
from tests.lab.rootfs import node_base


class Nodes:
    """The nodes on one network. `source` lets a node run the agent of another checkout."""

    def __init__(self, network: LabNetwork) -> None:
        self.network = network
        self._nodes: dict[int, Node] = {}

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def create(
        self,
        name: str = "sav-01",
        *,
        suite: str = "bookworm",
        agent: bool = True,
        source: Path = PROJECT,
        binds: Sequence[Bind] = (),
    ) -> Node:
        """A node that is wired but not booted, so that a test can write files into it first."""
        index = next(number for number in range(200) if number not in self._nodes)
        runtime = agent_runtime(suite, source) if agent else ()
        node = Node(name, self.network, index, node_base(suite), (*runtime, *binds))
        self._nodes[index] = node
        node.create()
        if agent:
            install_path(node)
        return node

    def boot(self, name: str = "sav-01", *, suite: str = "bookworm", agent: bool = True) -> Node:
        """A node that has finished booting."""
        node = self.create(name, suite=suite, agent=agent)
        node.start()
        node.wait_ready()
        return node

    def remove(self, node: Node) -> None:
        """Remove one node; its address may be given to another."""
        node.remove()
        del self._nodes[node.index]

    def remove_all(self) -> None:
        """Remove every node that is left."""
        for node in list(self._nodes.values()):
            self.remove(node)
