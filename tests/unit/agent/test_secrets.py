"""Bundles of secret values: gathered, written for systemd, read back."""

import base64
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import secrets
from agent.errors import AgentError
from agent.launch import Launch, Mount
from agent.users import Account
from horchestra.apimachinery.desired import SecretData
from horchestra.kinds.application import ApplicationSpec

VALUES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=40)


def launch(*variables: tuple[str, str], mounts: tuple[Mount, ...] = ()) -> Launch:
    sources = tuple((name, "Secret", "db", key) for name, key in variables)
    return Launch("d", "/x", ("x",), (), sources, Account(0, 0), "/", "hardened", (), False, mounts)


def db(**data: bytes) -> dict[tuple[str, str], SecretData]:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {("Secret", "db"): SecretData(kind="Secret", namespace="n", name="db", uid="u", data=encoded)}


def gather(started: Launch, known: Any, last: secrets.Bundle | None = None, **spec: Any) -> secrets.Gathered:
    return secrets.gather(ApplicationSpec.model_validate({"image": "x", **spec}), started, known, last)


@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,5}", fullmatch=True), VALUES, max_size=5))
def test_an_environment_reads_back(values: dict[str, str]) -> None:
    assert secrets._parse_environment(secrets.environment_file(values).decode()) == values


async def test_a_sealed_bundle_reads_back_and_is_closed_to_others(tmp_path: Path) -> None:
    bundle = secrets.Bundle({"A": 'x"\n'}, {"secret.db": {"key": b"\0\xff", ".hidden": b"1" * 700_000}})
    await secrets.seal(bundle, "salt", "u", tmp_path / "s", "plain")
    pieces = list((tmp_path / "s").iterdir())
    assert len(pieces) == 2
    assert all(piece.stat().st_mode & 0o777 == 0o600 for piece in pieces)
    assert await secrets.unseal("u", tmp_path / "s", "plain") == bundle


async def test_a_bundle_with_a_piece_missing_is_not_taken_for_whole(tmp_path: Path) -> None:
    await secrets.seal(secrets.Bundle({}, {"secret.db": {"k": b"1" * 700_000}}), "s", "u", tmp_path / "s", "plain")
    (tmp_path / "s/0001").unlink()
    with pytest.raises(AgentError, match="SecretsUnreadable"):
        await secrets.unseal("u", tmp_path / "s", "plain")


def test_a_deleted_secret_keeps_its_last_values_and_is_named() -> None:
    gone = {("Secret", "db"): SecretData(kind="Secret", namespace="n", name="db", uid="u", missing=True)}
    started = launch(("A", "a"), mounts=(Mount("files", "/x", "secret.db"),))
    last = secrets.Bundle({"A": "old"}, {"secret.db": {"a": b"old"}})
    gathered = gather(started, gone, last)
    assert gathered.bundle == last
    assert gathered.missing == ('secret "db"',)
    with pytest.raises(AgentError, match="SecretNotFound"):
        gather(started, gone)


def test_an_optional_key_may_be_absent_and_another_may_not() -> None:
    selector = {"name": "db", "key": "b", "optional": True}
    env = [{"name": "B", "valueFrom": {"secretKeyRef": selector}}]
    assert gather(launch(("B", "b")), db(a=b"1"), env=env).bundle.environment == {}
    with pytest.raises(AgentError, match="SecretKeyNotFound"):
        gather(launch(("B", "b")), db(a=b"1"))


@pytest.mark.parametrize("value", [b"\xff", b"a\0b"])
def test_a_value_that_is_no_text_cannot_be_a_variable(value: bytes) -> None:
    with pytest.raises(AgentError, match="InvalidSecret") as caught:
        gather(launch(("A", "a")), db(a=value))
    assert repr(value) not in str(caught.value)


@pytest.mark.parametrize("key", ["../x", "..data", "a/b", ".", "", "a\nb"])
def test_a_key_that_is_no_file_name_is_refused(key: str) -> None:
    with pytest.raises(AgentError, match="InvalidSecret"):
        gather(launch(mounts=(Mount("files", "/x", "secret.db"),)), db(**{key: b"1"}))


def test_equal_values_have_equal_digests_under_one_salt_only() -> None:
    one, same = secrets.Bundle({"A": "1"}), secrets.Bundle({"A": "1"})
    assert one.digest("s") == same.digest("s")
    assert one.digest("s") != one.digest("t")
    assert "1" not in repr(one)
