"""Durable creates a second with 32 writers against bare inserts with the same sync setting and the same grouping.

On SQLite (WAL, synchronous=FULL) and on PostgreSQL with all its safety on; through the store alone and through the API
door. `bare` says what the baseline is.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from tests.bench import bare
from tests.bench.applications import COLLECTION, application
from tests.bench.controller import Controller
from tests.bench.figure import Figure, Rule
from tests.bench.https import Connection, request
from tests.bench.rounds import paired
from tests.lab.estate import Estate
from tests.lab.servers import PostgresServer

_WRITERS = 32
_CREATES = 1600
_ROUNDS = 7
_BAR = 0.3


def run() -> list[Figure]:
    estate = Estate.fresh()
    postgres = PostgresServer(durable=True)
    try:
        postgres.start()
        insert = bare.sqlite(estate.directory / "bare.sqlite3")
        figures = _figures("SQLite", estate.directory / "sqlite", "", insert)
        url = postgres.create_database("horchestra")
        insert = bare.postgresql(postgres.create_database("bare"))
        return [*figures, *_figures("PostgreSQL", estate.directory / "postgresql", url, insert)]
    finally:
        postgres.remove()
        estate.close()


def _figures(title: str, directory: Path, url: str, insert: bare.Insert) -> list[Figure]:
    with Controller(directory, environment={"DATABASE_URL": url}) as controller:
        numbers = itertools.count(step=_CREATES)
        connections = [Connection(controller.port, controller.client) for _ in range(_WRITERS)]
        figures = []
        for way, create in (("store", _through_store), ("HTTPS", _through_door)):
            create(connections, next(numbers))
            pairs = paired(
                lambda: _CREATES / bare.creates(insert, next(numbers), _CREATES, _WRITERS),
                lambda create=create: _CREATES / create(connections, next(numbers)),  # type: ignore[misc]
                _ROUNDS,
            )
            line = f"creates with {_WRITERS} writers, {title}, {way} vs bare inserts"
            figures.append(Figure.of_pairs(line, "/s", pairs, Rule.RATIO_AT_LEAST, _BAR))
    return figures


def _through_store(connections: list[Connection], first: int) -> float:
    found: float = connections[0].call(request("GET", f"/creates/{first}/{_CREATES}/{_WRITERS}"))
    return found


def _through_door(connections: list[Connection], first: int) -> float:
    """Seconds; every connection has one create under way."""
    requests = [request("POST", COLLECTION, application(number)) for number in range(first, first + _CREATES)]
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
    return time.perf_counter() - started
