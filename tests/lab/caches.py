"""Everything of the lab that needs the network to be built and is then kept: run it while there is one.

python -m tests.lab.caches      # about two minutes the first time
"""

import functools
import sys
import time
from collections.abc import Callable

from tests.lab.agent_runtime import agent_runtime
from tests.lab.images.catalogue import CATALOGUE, build
from tests.lab.rootfs import node_base


def build_all(report: Callable[[str], None] = lambda line: None) -> None:
    """Build what is missing; `report` gets a line for each part that took a while."""
    parts: dict[str, Callable[[], object]] = {"node": node_base, "agent's libraries": agent_runtime}
    parts |= {f"image {name}": functools.partial(build, name) for name in CATALOGUE}
    for name, make in parts.items():
        started = time.monotonic()
        make()
        if (seconds := time.monotonic() - started) > 1:
            report(f"built {name} in {seconds:.0f} s")


if __name__ == "__main__":
    build_all(lambda line: print(line, file=sys.stderr, flush=True))
