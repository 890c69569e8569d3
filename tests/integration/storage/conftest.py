"""Stores on a fresh database of each sort, with a loop that must never be blocked."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import django
import psycopg
import pytest
from blockbuster import blockbuster_ctx

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "horchestra.settings")
django.setup()

from django.core.management import call_command  # noqa: E402  # needs Django's settings
from django.db import connections  # noqa: E402

from horchestra import settings as project  # noqa: E402
from horchestra.apimachinery.admission import SYSTEM  # noqa: E402
from horchestra.kinds.namespace import Namespace  # noqa: E402
from horchestra.storage.store import Store, WriteOptions  # noqa: E402
from tests.integration.storage.kinds import registry  # noqa: E402
from tests.lab.servers import PostgresServer  # noqa: E402

OPTIONS = WriteOptions(SYSTEM)


class Estate:
    """A migrated database with its data directory, and the stores that run on it."""

    def __init__(self, directory: Path, url: str | None) -> None:
        self.directory = directory
        self.url = url
        use_database(directory, url)
        self._stores: list[Store] = []

    async def start(self, **options: Any) -> Store:
        store = Store(registry(), data_dir=self.directory, **options)
        await store.start()
        self._stores.append(store)
        return store

    async def stop(self, store: Store) -> None:
        self._stores.remove(store)
        await store.close()

    async def close(self) -> None:
        for store in self._stores:
            await store.close()

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Straight from the database, past the store. Not on the loop: use asyncio.to_thread."""
        try:
            with connections["default"].cursor() as cursor:
                cursor.execute(sql, parameters)
                return list(cursor.fetchall()) if cursor.description else []
        finally:
            connections.close_all()


def use_database(directory: Path, url: str | None) -> None:
    described = project.postgresql(url) if url else project.sqlite(directory / "db.sqlite3")
    connections.close_all()
    connections.settings["default"].update(described)
    if hasattr(connections._connections, "default"):  # type: ignore[attr-defined]
        del connections["default"]


def migrate(directory: Path, url: str | None) -> None:
    use_database(directory, url)
    call_command("migrate", verbosity=0)
    connections.close_all()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database to copy."""
    directory = tmp_path_factory.mktemp("template")
    migrate(directory, None)
    return directory / "db.sqlite3"


@pytest.fixture(scope="session")
def postgres_database(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of a migrated database; each test empties it."""
    url = postgres_server.create_database("store")
    migrate(tmp_path_factory.mktemp("unused"), url)
    return url


def empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        others = "datname = current_database() AND pid <> pg_backend_pid()"
        connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}".encode())
        connection.execute("TRUNCATE horchestra_object, horchestra_revision")
        connection.execute("UPDATE horchestra_counter SET value = 0, compacted = 0, lineage = gen_random_uuid()")


@pytest.fixture(params=["sqlite", "postgresql"])
def estate(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Estate]:
    url = None
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "db.sqlite3")
    else:
        url = request.getfixturevalue("postgres_database")
        empty(url)
    made = Estate(tmp_path, url)
    yield made
    connections.close_all()


@pytest.fixture
async def store(estate: Estate) -> AsyncIterator[Store]:
    """A running store with the namespace `default`; whatever blocks the loop in our code fails the test."""
    with blockbuster_ctx("horchestra"):
        started = await estate.start()
        await started.create(Namespace, {"metadata": {"name": "default"}}, OPTIONS)
        yield started
        await estate.close()


async def eventually(condition: Any, seconds: float = 5) -> None:
    """Waits until `condition()` is true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # the condition is outside of our reach
            await asyncio.sleep(0.005)
