"""Every image of the lab by its name in the registry; built on first use, kept by the digest of its recipe."""

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.lab.images import hub, tiny
from tests.lab.images.layout import load, save
from tests.lab.lock import locked
from tests.lab.oci import Image, push
from tests.lab.paths import CACHE
from tests.lab.rootfs import digest

_ACCOUNTS = "root:x:0:0:root:/root:/bin/sh\nappuser:x:4242:4343:App:/home/app:/bin/sh\n"
_GROUPS = "root:x:0:\nappuser:x:4343:\n"

# repository:tag → recipe
CATALOGUE: dict[str, Callable[[], Image]] = {
    "library/postgres:18-alpine": hub.postgres,
    "library/nginx:stable": hub.nginx,
    "library/redis:8": hub.redis,
    "lab/uid-65532:1": lambda: tiny.shell(User="65532:65532"),
    "lab/uid-1001-gid-0:1": lambda: tiny.shell(User="1001:0", passwd=_ACCOUNTS, group=_GROUPS),
    "lab/named-user:1": lambda: tiny.shell(User="appuser", passwd=_ACCOUNTS, group=_GROUPS),
    "lab/no-user:1": tiny.two_architectures,
    "lab/lines:1": lambda: tiny.shell(
        "i=0; while [ $i -lt ${LINES:-100} ]; do i=$((i+1)); echo line $i; done; " + tiny.STAY
    ),
    "lab/ignores-sigterm:1": lambda: tiny.shell(
        "trap 'echo not yet' TERM; echo up; while :; do sleep 1 & wait $!; done"
    ),
    "lab/job-succeeds:1": lambda: tiny.shell("echo working; sleep ${SECONDS_OF_WORK:-0}; echo done"),
    "lab/job-fails:1": lambda: tiny.shell("echo working; sleep ${SECONDS_OF_WORK:-0}; echo failed >&2; exit 3"),
    "lab/crashes:1": lambda: tiny.shell("echo starting; exit 1"),
}


def build(name: str) -> Path:
    """The directory (OCI image layout) of an image of the catalogue; built if a recipe changed."""
    generation = CACHE / "images" / _recipe_digest()
    target = generation / name.replace("/", "-").replace(":", "-")
    with locked(CACHE / "images.lock"):
        if not target.exists():
            _forget_other_generations(generation)
            building = target.with_name(f"{target.name}.building")
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir(parents=True)
            save(CATALOGUE[name](), building)
            building.rename(target)
    return target


def push_all(registry: str) -> None:
    """Push the whole catalogue into the registry at `host:port`."""
    for name in CATALOGUE:
        repository, _, tag = name.rpartition(":")
        push(registry, repository, tag, load(build(name)))


def _forget_other_generations(kept: Path) -> None:
    for directory in kept.parent.glob("*/"):
        if directory != kept:
            shutil.rmtree(directory, ignore_errors=True)


def _recipe_digest() -> str:
    """Of all recipes together: a change is rare, and a stale image costs more than a minute."""
    here = Path(__file__).parent
    sources = [*sorted(here.glob("*.py")), *sorted((here / "files").iterdir()), here.parent / "oci.py"]
    return digest(*(source.read_text() for source in sources))
