"""What lies in the database: encrypted where the kind asks for it, and tied to a lineage."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections

from horchestra.apimachinery.admission import SYSTEM
from horchestra.apimachinery.errors import StatusError
from horchestra.storage.envelope import Envelope, EnvelopeError
from horchestra.storage.store import DeleteOptions, Store
from tests.integration.storage.conftest import OPTIONS, Estate
from tests.integration.storage.kinds import Vault, Widget, widget
from tests.integration.storage.test_watch import drain

SECRETS = ("correct horse battery staple", "the second secret value", "never to be read again")


async def keep_secrets(store: Store) -> None:
    made: dict[str, Any] = {"metadata": {"name": "v"}, "content": {"password": SECRETS[0]}}
    await store.create(Vault, made, OPTIONS)

    def change(obj: dict[str, Any]) -> dict[str, Any]:
        return {**obj, "content": {"password": SECRETS[1], "other": SECRETS[2]}}

    await store.update(Vault, "", "v", change, OPTIONS)


def at_rest(estate: Estate) -> bytes:
    """Every byte that the database holds of objects and revisions, its files included where they are at hand."""
    rows = estate.query("SELECT body FROM horchestra_object")
    rows += estate.query("SELECT body FROM horchestra_revision")
    rows += estate.query("SELECT previous FROM horchestra_revision WHERE previous IS NOT NULL")
    found = b"".join(bytes(row[0]) for row in rows)
    if not estate.url:
        files = [p for p in estate.directory.iterdir() if p.name.startswith("db.sqlite3")]
        assert {p.name for p in files} >= {"db.sqlite3", "db.sqlite3-wal"}
        found += b"".join(p.read_bytes() for p in files)
    return found


async def test_secret_values_are_nowhere_in_the_database(store: Store, estate: Estate) -> None:
    await keep_secrets(store)
    await store.create(Widget, widget("w", note="plain to see"), OPTIONS)
    found = await asyncio.to_thread(at_rest, estate)
    assert b"plain to see" in found
    for secret in SECRETS:
        assert secret.encode() not in found
    key = estate.directory / "secret.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.read_text().split()[1].encode() not in found


async def test_sealed_objects_and_history_open_again_after_a_restart(store: Store, estate: Estate) -> None:
    since = store.watch.revision
    await keep_secrets(store)
    await estate.stop(store)
    again = await estate.start()
    entry = again.watch.get(Vault, "", "v")
    assert entry is not None
    assert entry.obj["content"] == {"password": SECRETS[1], "other": SECRETS[2]}
    first, second = await drain(again.watch.subscribe(Vault, since=since), again.watch.revision)
    assert first.entry.obj["content"] == {"password": SECRETS[0]}
    assert second.previous is not None
    assert second.previous.obj["content"] == {"password": SECRETS[0]}


async def test_a_sealed_body_does_not_open_in_another_place(store: Store, estate: Estate) -> None:
    await keep_secrets(store)
    await store.create(Vault, {"metadata": {"name": "w"}}, OPTIONS)
    await estate.stop(store)
    swap = "UPDATE horchestra_object SET body = (SELECT body FROM horchestra_object WHERE name = 'v') WHERE name = 'w'"
    await asyncio.to_thread(estate.query, swap)
    await asyncio.to_thread(estate.query, "DELETE FROM horchestra_revision")
    with pytest.raises(EnvelopeError, match="w was changed in the database or belongs to another object"):
        await estate.start()


async def test_without_its_key_the_store_does_not_start_and_says_why(store: Store, estate: Estate) -> None:
    await keep_secrets(store)
    await estate.stop(store)
    key = estate.directory / "secret.key"
    kept = key.read_text()
    key.unlink()
    with pytest.raises(EnvelopeError, match="put back the key file that belongs to this database"):
        await estate.start()
    key.write_text(kept)
    assert (await estate.start()).watch.get(Vault, "", "v") is not None


async def test_a_new_key_on_top_seals_what_is_written_from_then_on(store: Store, estate: Estate) -> None:
    await keep_secrets(store)
    await estate.stop(store)
    key = estate.directory / "secret.key"
    old = key.read_text()
    key.unlink()
    fresh = await asyncio.to_thread(_fresh_key, key)
    key.write_text(fresh + old)
    again = await estate.start()
    await again.create(Vault, {"metadata": {"name": "w"}}, OPTIONS)
    assert again.watch.get(Vault, "", "v") is not None
    rows = await asyncio.to_thread(
        estate.query, "SELECT name, body FROM horchestra_object WHERE resource = 'vaults.test.example'"
    )
    used = {name: bytes(body)[1:9].hex() for name, body in rows}
    assert used == {"v": old.split()[0], "w": fresh.split()[0]}


def _fresh_key(path: Path) -> str:
    Envelope.load_or_create(path)
    return path.read_text()


def _new_lineage(said: io.StringIO) -> None:
    call_command("newlineage", stdout=said)
    connections.close_all()


async def test_a_new_lineage_expires_every_watch_of_the_old_one(store: Store, estate: Estate) -> None:
    await store.create(Widget, widget("a"), OPTIONS)
    seen, lineage = store.watch.revision, store.lineage
    await estate.stop(store)
    said = io.StringIO()
    await asyncio.to_thread(_new_lineage, said)
    assert lineage in said.getvalue()
    again = await estate.start()
    assert again.lineage != lineage
    assert again.watch.revision > seen
    assert again.watch.get(Widget, "default", "a") is not None
    for since in (seen, seen + 1, again.watch.revision - 1):
        with pytest.raises(StatusError) as caught:
            again.watch.subscribe(Widget, since=since)
        assert caught.value.reason == "Expired"
    assert again.watch.subscribe(Widget, since=again.watch.revision)


async def test_a_lineage_begun_under_a_running_store_is_noticed(store: Store, estate: Estate) -> None:
    await store.create(Widget, widget("a"), OPTIONS)
    lineage = store.lineage
    subscription = store.watch.subscribe(Widget)
    await asyncio.to_thread(
        estate.query, "UPDATE horchestra_counter SET lineage = 'other', value = value - 1, compacted = value - 1"
    )
    await asyncio.to_thread(estate.query, "DELETE FROM horchestra_revision")
    await asyncio.to_thread(estate.query, "DELETE FROM horchestra_object WHERE name = 'a'")
    await store.create(Widget, widget("b"), OPTIONS)
    assert (store.lineage, lineage) == ("other", lineage)
    assert [e.name for e in store.watch.list(Widget)] == ["b"]
    with pytest.raises(StatusError):
        await subscription.next_batch()
    assert (await store.delete(Widget, "default", "b", DeleteOptions(SYSTEM))).gone
