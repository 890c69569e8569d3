"""The store against the database alone: python -m tests.bench.bench_store

Durable creates by 32 writers as a share of bare inserts of the same bodies in groups of the same size with the same
sync setting; and lists of 10,000 objects as a multiple of joining nothing at all.
"""

from __future__ import annotations

import asyncio
import copy
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "horchestra.settings")
django.setup()

from django.core.management import call_command  # noqa: E402  # needs Django's settings
from django.db import connections  # noqa: E402

from horchestra import kinds, settings  # noqa: E402
from horchestra.apimachinery.admission import SYSTEM  # noqa: E402
from horchestra.apimachinery.selectors import LabelSelector  # noqa: E402
from horchestra.kinds.application import Application  # noqa: E402
from horchestra.kinds.namespace import Namespace  # noqa: E402
from horchestra.storage.store import Store, WriteOptions  # noqa: E402

WRITERS = 32
EACH = 150
LISTED = 10_000
OPTIONS = WriteOptions(SYSTEM)


def application(name: str) -> dict[str, Any]:
    """About 1.5 kB when stored."""
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"app": name, "tier": "backend", "tenth": "yes" if name.endswith("0") else "no"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x" * 500},
        },
        "spec": {
            "image": "registry.example/library/postgres:18-alpine",
            "env": {f"SETTING_{i}": "value" for i in range(8)},
            "ports": [{"name": "http", "port": 8080}],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
            "volumeMounts": [{"tmpfs": {"size": "64Mi"}, "path": "/run/postgresql"}],
        },
    }


async def creates(store: Store) -> tuple[float, float, int]:
    """(creates per second, writes per group, bytes per object)."""
    groups = 0
    take = store._take

    def counted(news: Any) -> None:
        nonlocal groups
        groups += 1
        take(news)

    store._take = counted  # type: ignore[method-assign]
    bodies = [[application(f"a{w}-{i}") for i in range(EACH)] for w in range(WRITERS)]
    size = 0

    async def write(mine: list[dict[str, Any]]) -> None:
        nonlocal size
        for body in mine:
            size = len((await store.create(Application, body, OPTIONS)).body)

    began = time.perf_counter()
    await asyncio.gather(*(write(mine) for mine in bodies))
    took = time.perf_counter() - began
    store._take = take  # type: ignore[method-assign]
    return WRITERS * EACH / took, WRITERS * EACH / groups, size


def inserts(path: Path, group: int, size: int) -> float:
    """Bare inserts per second."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, body BLOB)"
    )
    body = b"x" * size
    groups = WRITERS * EACH // group
    began = time.perf_counter()
    for at in range(groups):
        connection.execute("BEGIN IMMEDIATE")
        rows = [(at * group + i, f"a{at}-{i}", body) for i in range(group)]
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")
    took = time.perf_counter() - began
    connection.close()
    return groups * group / took


def fastest(run: Callable[[], object], times: int = 7) -> float:
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


async def lists(store: Store) -> dict[str, float]:
    """Milliseconds: a list right after a write, with selectors, and copying as many bytes."""
    bodies = [application(f"l{i:05}") for i in range(LISTED)]
    for at in range(0, LISTED, 500):
        await asyncio.gather(*(store.create(Application, b, OPTIONS) for b in bodies[at : at + 500]))
    constant = b"".join(store.watch.list_body(Application))

    def touch(obj: dict[str, Any]) -> dict[str, Any]:
        obj["metadata"]["annotations"]["touched"] = str(time.perf_counter())
        return obj

    after = []
    for i in range(7):
        await store.update(Application, "default", f"l{i * 997:05}", copy.deepcopy(touch), OPTIONS)
        began = time.perf_counter()
        store.watch.list_body(Application)
        after.append(time.perf_counter() - began)
    tenth, all_of_them = LabelSelector.parse("tenth=yes"), LabelSelector.parse("tier=backend")
    return {
        "bytes": len(constant),
        "copy": fastest(lambda: bytearray(constant)) * 1000,
        "after a write": min(after) * 1000,
        "a tenth by label": fastest(lambda: store.watch.list_body(Application, None, tenth)) * 1000,
        "all by label": fastest(lambda: store.watch.list_body(Application, None, all_of_them)) * 1000,
        "entries": fastest(lambda: store.watch.list(Application)) * 1000,
    }


async def main(directory: Path) -> None:
    store = Store(kinds.builtin(), data_dir=directory)
    await store.start()
    await store.create(Namespace, {"metadata": {"name": "default"}}, OPTIONS)
    rate, group, size = await creates(store)
    bare = await asyncio.to_thread(inserts, directory / "bare.sqlite3", max(1, round(group)), size)
    print(
        f"creates: {rate:.0f}/s in groups of {group:.1f}; bare inserts {bare:.0f}/s; ratio {rate / bare:.2f} (>= 0.3)"
    )
    for name, value in (await lists(store)).items():
        print(f"list of {LISTED}: {name} {value:.2f}")
    await store.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as made:
        connections.settings["default"].update(settings.sqlite(Path(made) / "db.sqlite3"))
        call_command("migrate", verbosity=0)
        connections.close_all()
        asyncio.run(main(Path(made)))
