"""Everything of the lab that needs the network to be built and is then kept: run it while there is one.

python -m tests.lab.caches [all]      # about two minutes the first time; all: for the long tests too
"""

import functools
import sys
import time
from collections.abc import Callable, Iterable

from tests.lab.agent_runtime import agent_runtime
from tests.lab.images.catalogue import CATALOGUE, build
from tests.lab.rootfs import node_base

# Debian suites of nodes: what `make test` uses, and what the long tests use as well.
QUICK_SUITES = ("bookworm",)
ALL_SUITES = (*QUICK_SUITES, "trixie")


def build_all(suites: Iterable[str] = QUICK_SUITES, report: Callable[[str], None] = lambda line: None) -> None:
    """Build what is missing; `report` gets a line for each part that took a while."""
    parts: dict[str, Callable[[], object]] = {}
    for suite in suites:
        parts[f"{suite} node"] = functools.partial(node_base, suite)
        parts[f"agent's libraries for {suite}"] = functools.partial(agent_runtime, suite)
    parts |= {f"image {name}": functools.partial(build, name) for name in CATALOGUE}
    for name, make in parts.items():
        started = time.monotonic()
        make()
        if (seconds := time.monotonic() - started) > 1:
            report(f"built {name} in {seconds:.0f} s")


if __name__ == "__main__":
    build_all(
        ALL_SUITES if sys.argv[1:] == ["all"] else QUICK_SUITES, lambda line: print(line, file=sys.stderr, flush=True)
    )
