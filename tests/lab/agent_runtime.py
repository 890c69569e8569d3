"""Gives a node what the agent needs: the libraries of `requirements-agent.lock` and the project's source.

The libraries are wheels for the node's own Python (not this machine's), unpacked once into the cache; both are bound
read-only into the node, and a .pth file makes `python3 -m agent` work there as it stands.
"""

import shutil
import sys
from pathlib import Path

from tests.lab.command import run
from tests.lab.lock import locked
from tests.lab.node import Bind, Node
from tests.lab.paths import CACHE, PROJECT
from tests.lab.rootfs import digest

LOCK = PROJECT / "requirements-agent.lock"
# The only parts of the project that the agent imports.
SOURCES = ("agent", "horchestra", "proto")
# Python of a Debian suite; bullseye's 3.9 is too old for the agent.
PYTHON_OF_SUITE = {"bookworm": "3.11", "trixie": "3.13"}
_SITE = "/usr/lib/horchestra/site"
_SOURCE = "/usr/lib/horchestra/src"
_PTH = "usr/lib/python3/dist-packages/horchestra.pth"


def agent_runtime(suite: str = "bookworm", source: Path = PROJECT) -> tuple[Bind, ...]:
    """What a node of `suite` must bind to run the agent of `source` (a checkout)."""
    parts = (Bind(source / part, f"{_SOURCE}/{part}") for part in SOURCES if (source / part).is_dir())
    return (Bind(_site(PYTHON_OF_SUITE[suite]), _SITE), *parts)


def install_path(node: Node) -> None:
    """Put the bound directories on the module path of the node's Python; call it after `create`."""
    node.write(_PTH, f"{_SOURCE}\n{_SITE}\n")


def _site(python: str) -> Path:
    """The unpacked wheels for a Python version such as "3.11"; the lock's digest is in the name."""
    target = CACHE / "agent-site" / f"{python}-{digest(LOCK.read_text())}"
    with locked(target.with_name(f"{target.name}.lock")):
        if not target.exists():
            building = target.with_name(f"{target.name}.building")
            shutil.rmtree(building, ignore_errors=True)
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
            wheels = ("--no-deps", "--only-binary", ":all:", "--python-version", python, "--implementation", "cp")
            platforms = ("--platform", "manylinux2014_x86_64", "--platform", "any")
            run(*pip, *wheels, *platforms, "--require-hashes", "-r", LOCK, "--target", building, timeout=600)
            building.rename(target)
    return target
