"""LIST of 10,000 applications and GET by name against a constant answer of the same size from the same listener.

Real TLS on loopback; server and client are processes of their own. Before every LIST an application is written, so that
nothing can be remembered from the list before; before the constant answer too, so that both begin alike. GETs come on
several connections at a time: the server always has one to do, and what the client costs is hidden behind it.
"""

from __future__ import annotations

import itertools
import time

from tests.bench.applications import COLLECTION, name
from tests.bench.controller import Controller
from tests.bench.figure import Figure, Rule
from tests.bench.https import Connection, request, touch
from tests.bench.rounds import paired
from tests.lab.estate import Estate

_APPLICATIONS = 10_000
_LIST_ROUNDS = 20
_REPEATS = 3
_GET_ROUNDS = 60
_GETS = 400
_CONNECTIONS = 8
_LISTS = {
    "LIST of 10,000": "",
    "LIST with a label selector, 1 in 10": "?labelSelector=tier%3Dt3",
    "LIST with a label selector, 1 in 2": "?labelSelector=half%3Dh1",
}


def run() -> list[Figure]:
    estate = Estate.fresh()
    try:
        with Controller(estate.directory / "controller", _APPLICATIONS) as controller:
            connections = [Connection(controller.port, controller.client) for _ in range(_CONNECTIONS)]
            figures = [_list(connections[0], title, query) for title, query in _LISTS.items()]
            return [*figures, _get(connections)]
    finally:
        estate.close()


def _list(connection: Connection, title: str, query: str) -> Figure:
    writes = itertools.count()

    def once(prepared: bytes) -> float:
        number = next(writes)
        connection.call(touch(COLLECTION, name(number * 7919 % _APPLICATIONS), str(number)))
        started = time.perf_counter()
        connection.send(prepared)
        connection.receive()
        return (time.perf_counter() - started) * 1000

    def measure(prepared: bytes) -> float:
        """The best of a few: what else the machine does in a few milliseconds is no part of either side."""
        return min(once(prepared) for _ in range(_REPEATS))

    listing = request("GET", COLLECTION + query)
    connection.send(listing)
    size = connection.receive()
    constant = request("GET", f"/constant/{size}")
    for prepared in (listing, constant):
        measure(prepared)
    pairs = paired(lambda: measure(constant), lambda: measure(listing), _LIST_ROUNDS)
    return Figure.of_pairs(f"{title} ({size / 1e6:.1f} MB)", "ms", pairs, Rule.RATIO_AT_MOST, 1.3)


def _get(connections: list[Connection]) -> Figure:
    gets = [request("GET", f"{COLLECTION}/{name(number * 6)}") for number in range(_GETS)]
    connections[0].send(gets[0])
    size = connections[0].receive()
    constants = [request("GET", f"/constant/{size}")] * _GETS

    def measure(requests: list[bytes]) -> float:
        """Microseconds a request."""
        ring = itertools.cycle(connections)
        started = time.perf_counter()
        for connection, prepared in zip(connections, requests, strict=False):
            connection.send(prepared)
        for prepared in requests[len(connections) :]:
            connection = next(ring)
            connection.receive()
            connection.send(prepared)
        for _ in connections:
            next(ring).receive()
        return (time.perf_counter() - started) * 1e6 / len(requests)

    for requests in (gets, constants):
        measure(requests)
    pairs = paired(lambda: measure(constants), lambda: measure(gets), _GET_ROUNDS)
    return Figure.of_pairs(f"GET by name ({size / 1000:.1f} kB)", "µs", pairs, Rule.RATIO_AT_MOST, 2)
