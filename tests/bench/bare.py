"""What a database gives when nothing is validated, admitted or told to anyone: the baseline of durable creates.

Many writers hand rows to one thread, which commits whatever is waiting as one group: the same shape, the same rows and
the same sync setting as the store's. Each create is a row for the object and a row for the log of changes, since no
store can do with less that lets others watch.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psycopg

from tests.bench.applications import application, name

Row = tuple[str, str, str, str, int, bytes]
_CREATED = 1_800_000_000_000
Insert = Callable[[list[Row]], None]
"""Inserts the rows into both tables, moves the counter, commits."""

_TABLES = (
    "CREATE TABLE object (resource varchar(320), namespace varchar(253), name varchar(253), uid varchar(36),"
    " revision bigint, body {bytes}, PRIMARY KEY (resource, namespace, name))",
    "CREATE TABLE log (id bigint PRIMARY KEY, type varchar(8), resource varchar(320), namespace varchar(253),"
    " name varchar(253), uid varchar(36), created bigint, body {bytes}, previous {bytes})",
    "CREATE TABLE counter (value bigint)",
    "INSERT INTO counter VALUES (0)",
)


def creates(insert: Insert, first: int, count: int, writers: int) -> float:
    """The seconds that `count` creates take."""
    rows = [_row(number) for number in range(first, first + count)]
    return asyncio.run(_creates(insert, rows, writers))


async def _creates(insert: Insert, rows: list[Row], writers: int) -> float:
    loop = asyncio.get_running_loop()
    waiting: queue.SimpleQueue[tuple[Row, asyncio.Future[None]] | None] = queue.SimpleQueue()
    thread = threading.Thread(target=_commit_groups, args=(insert, waiting, loop))
    thread.start()
    left = iter(rows)

    async def one_after_another() -> None:
        for row in left:
            done = loop.create_future()
            waiting.put((row, done))
            await done

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(writers):
            group.create_task(one_after_another())
    elapsed = time.perf_counter() - started
    waiting.put(None)
    thread.join()
    return elapsed


def _commit_groups(
    insert: Insert,
    waiting: queue.SimpleQueue[tuple[Row, asyncio.Future[None]] | None],
    loop: asyncio.AbstractEventLoop,
) -> None:
    while (job := waiting.get()) is not None:
        group = [job]
        while not waiting.empty() and (following := waiting.get()) is not None:
            group.append(following)
        insert([row for row, _ in group])
        loop.call_soon_threadsafe(_answer, [done for _, done in group])


def _answer(group: list[asyncio.Future[None]]) -> None:
    for done in group:
        done.set_result(None)


def _row(number: int) -> Row:
    """With the metadata that the store adds."""
    obj, uid = application(number), str(uuid.UUID(int=number))
    added = {
        "uid": uid,
        "generation": 1,
        "creationTimestamp": "2027-01-15T08:00:00Z",
        "resourceVersion": str(number),
        "finalizers": ["orch.ks-tool.dev/node"],
    }
    body = json.dumps({**obj, "metadata": {**obj["metadata"], **added}}, separators=(",", ":")).encode()
    return "applications.orch.ks-tool.dev", "default", name(number), uid, number, body


def _logged(row: Row) -> tuple[object, ...]:
    return (row[4], "ADDED", *row[:4], _CREATED, row[5], None)


def sqlite(path: Path) -> Insert:
    """As the controller opens it: WAL, synchronous=FULL."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", *_TABLES):
        connection.execute(statement.format(bytes="blob"))

    def insert(rows: list[Row]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", map(_logged, rows))
        connection.executemany("INSERT INTO object VALUES (?, ?, ?, ?, ?, ?)", rows)
        connection.execute("UPDATE counter SET value = ?", (rows[-1][4],))
        connection.execute("COMMIT")

    return insert


def postgresql(url: str) -> Insert:
    connection = psycopg.connect(url)
    for statement in _TABLES:
        connection.execute(statement.format(bytes="bytea").encode())
    connection.commit()

    def insert(rows: list[Row]) -> None:
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO log VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)", map(_logged, rows))
            cursor.executemany("INSERT INTO object VALUES (%s, %s, %s, %s, %s, %s)", rows)
            cursor.execute("UPDATE counter SET value = %s", (rows[-1][4],))
        connection.commit()

    return insert
