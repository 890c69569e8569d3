"""What the agent costs a host that runs 50 applications and where nothing happens: memory, and time of one core.

Counted are all processes of the agent's unit. Time is what the scheduler booked for them (/proc/PID/schedstat).
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
_SCRIPT = """
import subprocess
unit = "horchestra-agent.service"
show = subprocess.run(["systemctl", "show", "-p", "MainPID", "--value", unit], capture_output=True, text=True)
pids = [show.stdout.strip()]
for pid in pids:
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        pids += children.read().split()
memory = time = 0
for pid in pids:
    with open(f"/proc/{pid}/status") as status:
        memory += next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    for task in __import__("os").listdir(f"/proc/{pid}/task"):
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
        pid, _, before = _usage(here)
        started = time.monotonic()
        time.sleep(_IDLE_SECONDS)
        same, memory, after = _usage(here)
        elapsed = time.monotonic() - started
    if pid != same:
        raise RuntimeError("the agent was restarted while it was measured")
    percent = (after - before) / 1e9 / elapsed * 100
    title = f"agent with {_APPLICATIONS} applications"
    return [
        Figure(f"{title}, memory (RSS)", "MB", memory / 1024, None, None, Rule.AT_MOST, 70),
        Figure(f"{title}, idle CPU of one core", "%", percent, None, None, Rule.AT_MOST, 0.5),
    ]


def _all_run(found: dict[str, Any]) -> bool:
    return all(item.get("status", {}).get("phase") == "Running" for item in found["items"])


def _usage(here: Site) -> tuple[int, int, int]:
    """Pid of the agent in the node, RSS in KiB, nanoseconds of CPU."""
    pid, memory, booked = here.node.exec("python3", "-c", _SCRIPT).stdout.split()
    return int(pid), int(memory), int(booked)
