"""What the agent costs a host that runs 50 applications and where nothing happens: memory, and time of one core.

Counted are all processes of the agent's unit; those of the unit that carries applications' output to the journal are
named beside. Time is what the scheduler booked for them (/proc/PID/schedstat).
"""

from __future__ import annotations

import time
from typing import Any

from tests.bench.figure import Figure, Rule
from tests.bench.https import request
from tests.bench.site import APPLICATIONS, Site, application, site, wait

_APPLICATIONS = 50
_SETTLE_SECONDS = 20
_IDLE_SECONDS = 60
_UNITS = ("horchestra-agent.service", "horchestra-logs.service")
# For each unit: pid, KiB of memory, nanoseconds of CPU.
_SCRIPT = """
import os, subprocess, sys
for unit in sys.argv[1:]:
    show = subprocess.run(["systemctl", "show", "-p", "MainPID", "--value", unit], capture_output=True, text=True)
    pids = [show.stdout.strip()]
    for pid in pids:
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            pids += children.read().split()
    memory = time = 0
    for pid in pids:
        with open(f"/proc/{pid}/status") as status:
            memory += next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as booked:
                time += int(booked.read().split()[0])
    print(pids[0], memory, time)
"""


def run() -> list[Figure]:
    with site() as here:
        connection = here.connect()
        for number in range(_APPLICATIONS):
            connection.call(request("POST", APPLICATIONS, application(f"idle-{number:02}")))
        wait(connection, APPLICATIONS, _all_run, 180)
        time.sleep(_SETTLE_SECONDS)
        before = _usage(here)
        started = time.monotonic()
        time.sleep(_IDLE_SECONDS)
        after = _usage(here)
        elapsed = time.monotonic() - started
    if [unit[0] for unit in before] != [unit[0] for unit in after]:
        raise RuntimeError("a unit was restarted while it was measured")
    memory, pump_memory = (unit[1] / 1024 for unit in after)
    percent, pump_percent = ((now[2] - then[2]) / 1e9 / elapsed * 100 for now, then in zip(after, before, strict=True))
    title = f"agent with {_APPLICATIONS} applications"
    pump = "beside it the log pump: {:.3g} {}"
    return [
        Figure(f"{title}, memory", "MB", memory, None, None, Rule.AT_MOST, 70, pump.format(pump_memory, "MB")),
        Figure(f"{title}, idle", "% of a core", percent, None, None, Rule.AT_MOST, 0.5, pump.format(pump_percent, "%")),
    ]


def _all_run(found: dict[str, Any]) -> bool:
    return all(item.get("status", {}).get("phase") == "Running" for item in found["items"])


def _usage(here: Site) -> list[tuple[int, int, int]]:
    """Of each unit: pid in the node, RSS in KiB, nanoseconds of CPU."""
    lines = here.node.exec("python3", "-c", _SCRIPT, *_UNITS).stdout.splitlines()
    return [(int(pid), int(memory), int(booked)) for pid, memory, booked in (line.split() for line in lines)]
