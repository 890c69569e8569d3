"""A program that writes until it is killed, and says what was acknowledged: python -m ... DIRECTORY [URL]."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from horchestra.storage.store import Store
from tests.integration.storage.conftest import OPTIONS, use_database
from tests.integration.storage.kinds import Widget, registry, widget


async def main(directory: Path) -> None:
    store = Store(registry(), data_dir=directory)
    await store.start()

    async def write(writer: int) -> None:
        for i in range(1_000_000):
            name = f"w{writer}-{i}"
            await store.create(Widget, widget(name, note="x" * 200), OPTIONS)
            written = await store.update(Widget, "default", name, acknowledge, OPTIONS)
            os.write(1, f"{name} {written.obj['metadata']['resourceVersion']}\n".encode())

    await asyncio.gather(*(write(i) for i in range(32)))


def acknowledge(obj: dict[str, Any]) -> dict[str, Any]:
    return {**obj, "spec": {"size": 2, "note": "acknowledged"}}


if __name__ == "__main__":
    use_database(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
    asyncio.run(main(Path(sys.argv[1])))
