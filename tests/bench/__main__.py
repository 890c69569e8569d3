"""`make bench`: every bench in a process of its own, one table at the end.

    python -m tests.bench                 # all
    python -m tests.bench reads pull      # some

The exit code is 1 when a bench could not run; a bar that is not met is printed and fails nothing.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.figure import Figure, Rule, table

# Module → what it measures. Each has `run() -> list[Figure]`.
BENCHES = {
    "reads": "LIST of 10,000 applications and GET by name",
    "fanout": "watch fan-out to 1,000 watchers",
    "creates": "durable creates with 32 writers",
    "start": "apply to Running on a node",
    "agent": "memory and idle time of the agent with 50 applications",
    "pull": "cold pull and unpack of an image with many files",
}
_LIMIT_SECONDS = 900
_BUSY = 0.3
"""Share of the machine's time that others may take before a figure is worth a warning."""


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--measure"]:
        module = importlib.import_module(f"tests.bench.{arguments[1]}")
        print(json.dumps([dataclasses.asdict(figure) for figure in module.run()]))
        return 0
    if unknown := [name for name in arguments if name not in BENCHES]:
        print(f"no bench {', '.join(unknown)}; there are: {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    figures: list[Figure] = []
    broken = []
    if (busy := _busy()) > _BUSY:
        print(f"others use {busy:.0%} of this machine: figures will be worse than they are", file=sys.stderr)
    for name in arguments or BENCHES:
        started = time.monotonic()
        print(f"{name}: {BENCHES[name]} ... ", end="", file=sys.stderr, flush=True)
        found = _measure(name)
        print(f"{time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        if found is None:
            broken.append(name)
        figures += found or []
    if figures:
        print(table(figures))
    if broken:
        print(f"could not run: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


def _busy() -> float:
    """Share of all cores that was not idle for a second (proc(5), /proc/stat)."""

    def times() -> list[int]:
        return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]

    before = times()
    time.sleep(1)
    spent = [after - then for then, after in zip(before, times(), strict=True)]
    return 1 - (spent[3] + spent[4]) / max(sum(spent), 1)


def _measure(name: str) -> list[Figure] | None:
    """The figures of a bench, or None when it failed; what it printed about that is on stderr."""
    command = [sys.executable, "-m", "tests.bench", "--measure", name]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{name} took more than {_LIMIT_SECONDS} s", file=sys.stderr)
        return None
    if done.returncode != 0:
        return None
    lines = done.stdout.strip().splitlines()
    return [Figure(**{**fields, "rule": Rule(fields["rule"])}) for fields in json.loads(lines[-1])]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
