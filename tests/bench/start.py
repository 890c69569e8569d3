"""From apply to Running against `systemd-run` on the same node, the image being there already.

Ours: from sending the manifest until a watch reports the phase Running, so API, store, session, agent, mount, unit,
status and watch are all in it. Baseline: what `systemd-run --service-type=exec` takes inside the node, which is how
fast this systemd starts any program. kubectl's own start is in neither.
"""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

from tests.bench.figure import Figure, Rule
from tests.bench.https import Connection, request
from tests.bench.rounds import paired
from tests.bench.site import APPLICATIONS, Site, application, site
from tests.lab.node import Node

_ROUNDS = 15
_BAR = 150.0
_TIMEOUT = 60.0
# Milliseconds by the node's own clock: entering the node costs more than the start itself.
_SYSTEMD_RUN = """
import subprocess, sys, time
started = time.perf_counter()
subprocess.run(["systemd-run", "--quiet", "--service-type=exec", "--unit", sys.argv[1], "sleep", "1000000"], check=True)
print((time.perf_counter() - started) * 1000)
subprocess.run(["systemctl", "stop", sys.argv[1]], check=True)
"""


def run() -> list[Figure]:
    with site() as here:
        names = (f"start-{number}" for number in itertools.count())
        connection = here.connect()
        _apply(here, connection, next(names))
        pairs = paired(
            lambda: _systemd_run(here.node, next(names)), lambda: _apply(here, connection, next(names)), _ROUNDS
        )
    return [Figure.of_pairs("apply → Running vs systemd-run", "ms", pairs, Rule.OVER_BASELINE_AT_MOST, _BAR)]


def _systemd_run(node: Node, unit: str) -> float:
    return float(node.exec("python3", "-c", _SYSTEMD_RUN, f"bench-{unit}").stdout)


def _apply(here: Site, connection: Connection, name: str) -> float:
    """Milliseconds; the application is gone again when this returns."""
    watch = _Watch(here, name)
    started = time.perf_counter()
    connection.call(request("POST", APPLICATIONS, application(name)))
    watch.until(lambda event: event["object"].get("status", {}).get("phase") == "Running")
    elapsed = (time.perf_counter() - started) * 1000
    connection.call(request("DELETE", f"{APPLICATIONS}/{name}"))
    watch.until(lambda event: event["type"] == "DELETED")
    watch.close()
    return elapsed


class _Watch:
    """A watch of one application by name."""

    def __init__(self, here: Site, name: str) -> None:
        connection = here.connect()
        connection.send(request("GET", f"{APPLICATIONS}?watch=1&fieldSelector=metadata.name%3D{name}"))
        self._socket = connection.socket
        self._socket.settimeout(_TIMEOUT)
        self._held = b""
        while b"\r\n\r\n" not in self._held:
            self._held += self._socket.recv(65536)
        self._held = self._held.partition(b"\r\n\r\n")[2]
        self._seen: list[dict[str, Any]] = []

    def until(self, wanted: Any) -> None:
        """Raises TimeoutError with the last events when the wanted one does not come."""
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            line, feed, rest = self._held.partition(b"\n")
            if feed:
                self._held = rest
                # What frames a chunk of HTTP is not an event.
                if line.startswith(b"{"):
                    self._seen.append(json.loads(line))
                    if wanted(self._seen[-1]):
                        return
                continue
            try:
                self._held += self._socket.recv(65536)
            except TimeoutError:
                break
        raise TimeoutError(f"the wanted event did not come; the last were {json.dumps(self._seen[-3:])}")

    def close(self) -> None:
        self._socket.close()
