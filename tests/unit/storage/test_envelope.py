"""Sealed bodies and the key file."""

from __future__ import annotations

from pathlib import Path

import pytest

from horchestra.storage.envelope import Envelope, EnvelopeError


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return tmp_path / "secret.key"


def test_what_is_sealed_opens_only_where_it_belongs(key: Path) -> None:
    envelope = Envelope.load_or_create(key)
    sealed = envelope.seal("secrets/a/b", b'{"x":1}')
    assert b'"x"' not in sealed
    assert envelope.open("secrets/a/b", sealed) == b'{"x":1}'
    assert envelope.seal("secrets/a/b", b'{"x":1}') != sealed
    for where, blob in (("secrets/a/c", sealed), ("secrets/a/b", sealed[:-1] + bytes([sealed[-1] ^ 1]))):
        with pytest.raises(EnvelopeError):
            envelope.open(where, blob)
    assert envelope.open("nodes//a", b'{"plain":1}') == b'{"plain":1}'


def test_the_file_is_private_and_loaded_again(key: Path) -> None:
    sealed = Envelope.load_or_create(key).seal("k", b"body")
    assert key.stat().st_mode & 0o777 == 0o600
    assert Envelope.load_or_create(key).open("k", sealed) == b"body"


def test_a_file_that_others_could_read_is_refused(key: Path) -> None:
    Envelope.load_or_create(key)
    key.chmod(0o644)
    with pytest.raises(EnvelopeError, match="chmod 600"):
        Envelope.load_or_create(key)


@pytest.mark.parametrize("content", ["", "one", "zz " + "A" * 44, "00" * 8 + " AAAA", "00" * 8 + " ***", "a b c"])
def test_a_file_that_holds_no_keys_is_refused(key: Path, content: str) -> None:
    key.write_text(content)
    key.chmod(0o600)
    with pytest.raises(EnvelopeError, match="is not a key file"):
        Envelope.load_or_create(key)


def test_old_keys_open_and_the_first_key_seals(key: Path, tmp_path: Path) -> None:
    old = Envelope.load_or_create(key).seal("k", b"old")
    other = tmp_path / "other.key"
    Envelope.load_or_create(other)
    key.write_text(other.read_text() + key.read_text())
    both = Envelope.load_or_create(key)
    assert both.open("k", old) == b"old"
    new = both.seal("k", b"new")
    assert Envelope.load_or_create(other).open("k", new) == b"new"
    with pytest.raises(EnvelopeError, match="put back the key file"):
        Envelope.load_or_create(other).open("k", old)
