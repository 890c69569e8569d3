"""Watch fan-out: 1,000 watchers of one collection, 100 writes a second, from a write's acknowledgement to each reader.

Three processes: the API server, one that writes and notes when each write was acknowledged, and this one, which holds
all the watches. CLOCK_MONOTONIC is the same for all. A watch delivers every event once and in order, so the n-th
event that a watcher receives is the n-th write.
"""

from __future__ import annotations

import json
import select
import ssl
import subprocess
import sys
import time
from pathlib import Path
from statistics import quantiles

from tests.bench.applications import COLLECTION, name
from tests.bench.controller import Controller
from tests.bench.figure import Figure, Rule
from tests.bench.https import Connection, request, touch
from tests.lab.estate import Estate
from tests.lab.paths import PROJECT

_WATCHERS = 1000
_RATE = 100
_SECONDS = 10.0
_APPLICATIONS = 200
_BAR = 250.0
_PATIENCE = 30.0


def run() -> list[Figure]:
    estate = Estate.fresh()
    try:
        with Controller(estate.directory / "controller", _APPLICATIONS) as controller:
            one, _ = _lateness(controller, estate.directory, 1)
            many, rate = _lateness(controller, estate.directory, _WATCHERS)
    finally:
        estate.close()
    name = f"watch fan-out to {_WATCHERS:,} at {_RATE} events/s, p99 (baseline: one watcher)"
    ours, baseline = _percentile(many, 99), _percentile(one, 99)
    remark = f"p50 {_percentile(many, 50):.0f} ms at {rate:.0f} events/s"
    return [Figure(name, "ms", ours, baseline, ours / baseline, Rule.AT_MOST, _BAR, remark)]


def _lateness(controller: Controller, directory: Path, count: int) -> tuple[list[float], float]:
    """Milliseconds from acknowledgement to reception, of all watchers and events, and the writes a second."""
    since = _revision(controller)
    watches = [_Watch(controller, since) for _ in range(count)]
    command = [sys.executable, "-m", "tests.bench.fanout", str(controller.port), str(directory / "controller/pki")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=PROJECT) as writer:
        expected = int(_RATE * _SECONDS)
        _receive(watches, expected)
        output, _ = writer.communicate(timeout=_PATIENCE)
    acknowledged = json.loads(output)
    for watch in watches:
        watch.close()
    late = [
        (received - written) * 1000
        for watch in watches
        for received, written in zip(watch.received, acknowledged, strict=True)
    ]
    return late, (len(acknowledged) - 1) / (acknowledged[-1] - acknowledged[0])


def _percentile(values: list[float], percent: int) -> float:
    return quantiles(values, n=100)[percent - 1]


class _Watch:
    """One open watch that counts events and notes when each came."""

    def __init__(self, controller: Controller, since: str) -> None:
        connection = Connection(controller.port, controller.client)
        connection.send(request("GET", f"{COLLECTION}?watch=1&resourceVersion={since}"))
        self.socket = connection.socket
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.socket.recv(4096)
        self.socket.setblocking(False)
        self.received: list[float] = []

    def read(self, buffer: bytearray) -> None:
        """Takes what is there. A line feed ends every event, and only the framing of chunks has carriage returns."""
        try:
            while size := self.socket.recv_into(buffer):
                events = buffer.count(b"\n", 0, size) - buffer.count(b"\r", 0, size)
                self.received += [time.monotonic()] * events
                if not self.socket.pending():  # what is left is in the kernel, which tells of it again
                    return
        except ssl.SSLWantReadError:
            return
        raise RuntimeError(f"the server ended a watch after {len(self.received)} events")

    def close(self) -> None:
        self.socket.close()


def _revision(controller: Controller) -> str:
    connection = Connection(controller.port, controller.client)
    found: str = connection.call(request("GET", f"{COLLECTION}?limit=1"))["metadata"]["resourceVersion"]
    connection.close()
    return found


def _receive(watches: list[_Watch], expected: int) -> None:
    """Reads until every watch has seen all events. Raises RuntimeError when they do not come."""
    ready, by_number, buffer = select.epoll(), {watch.socket.fileno(): watch for watch in watches}, bytearray(65536)
    for number in by_number:
        ready.register(number, select.EPOLLIN)
    deadline = time.monotonic() + _SECONDS + _PATIENCE
    while by_number:
        for number, _ in ready.poll(1):
            watch = by_number[number]
            watch.read(buffer)
            if len(watch.received) >= expected:
                ready.unregister(number)
                del by_number[number]
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(by_number)} of {len(watches)} watchers did not see all {expected} events in time")


def _write(port: int, pki: Path) -> list[float]:
    """Writes one after the other at a steady rate, late ones at once; when each was acknowledged."""
    context = ssl.create_default_context(cafile=pki / "ca.pem")
    context.load_cert_chain(pki / "client.pem", pki / "client.key")
    connection = Connection(port, context)
    acknowledged: list[float] = []
    started = time.monotonic() + 0.5
    for number in range(int(_RATE * _SECONDS)):
        pause = started + number / _RATE - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        connection.send(touch(COLLECTION, name(number % _APPLICATIONS), str(started + number)))
        connection.receive()
        acknowledged.append(time.monotonic())
    return acknowledged


if __name__ == "__main__":
    print(json.dumps(_write(int(sys.argv[1]), Path(sys.argv[2]))))
