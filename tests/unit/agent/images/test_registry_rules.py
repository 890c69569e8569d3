"""The parts of the registry client that need no network: mirrors, credentials, challenges, Retry-After."""

import base64
import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import AgentError
from agent.images.abort import Abort
from agent.images.authorization import parse_challenges
from agent.images.credentials import RegistryCredentials
from agent.images.mirrors import Endpoint, RegistryConfig, RegistryMirror
from agent.images.ratelimit import MAX_DELAY, RegistryGates, retry_after
from agent.images.reference import ImageReference

POSTGRES = ImageReference.parse("postgres:18")


def test_a_registry_without_mirrors_is_asked_itself() -> None:
    config = RegistryConfig(cas={"registry.example:5000": Path("/ca.pem")})
    assert config.endpoints(POSTGRES) == (Endpoint("https://registry-1.docker.io", "library/postgres"),)
    private = ImageReference.parse("registry.example:5000/a/b")
    assert config.endpoints(private) == (Endpoint("https://registry.example:5000", "a/b", Path("/ca.pem")),)


def test_a_registry_with_mirrors_is_not_asked_unless_that_is_allowed() -> None:
    mirrors = (
        RegistryMirror("docker.io", "http://one:5000/", rewrite=("^library/(.*)", r"hub/\1")),
        RegistryMirror("quay.io", "https://never"),
        RegistryMirror("*", "https://two", ca=Path("/two.pem")),
    )
    expected = (
        Endpoint("http://one:5000", "hub/postgres"),
        Endpoint("https://two", "library/postgres", Path("/two.pem")),
    )
    assert RegistryConfig(mirrors).endpoints(POSTGRES) == expected
    with_fallback = RegistryConfig(mirrors, fallback=True).endpoints(POSTGRES)
    assert with_fallback == (*expected, Endpoint("https://registry-1.docker.io", "library/postgres"))


@pytest.mark.parametrize("endpoint", ["one:5000", "ftp://one", "http://", "https://u:p@one", "https://one?x=y"])
def test_a_mirror_that_is_no_url_is_refused_at_once(endpoint: str) -> None:
    with pytest.raises(AgentError, match="InvalidMirror"):
        RegistryMirror("docker.io", endpoint)


@pytest.mark.parametrize("rewrite", [("(", ""), ("a", r"\1")])
def test_a_rewrite_that_cannot_work_is_refused_at_once(rewrite: tuple[str, str]) -> None:
    with pytest.raises(AgentError, match="InvalidMirror"):
        RegistryMirror("docker.io", "https://one", rewrite=rewrite)


def docker_config(auths: Any) -> bytes:
    return json.dumps({"auths": auths}).encode()


def test_credentials_are_read_from_a_docker_config_in_all_its_spellings() -> None:
    credentials = RegistryCredentials.from_docker_config(
        docker_config(
            {
                "https://index.docker.io/v1/": {"auth": base64.b64encode(b"hub:p:w").decode()},
                "https://Registry.example:5000": {"username": "u", "password": "p"},
                "registry.example:5000/team/a": {"username": "team", "password": "p"},
            }
        )
    )
    assert credentials.find("registry-1.docker.io", "library/postgres") == ("hub", "p:w")
    assert credentials.find("registry.example:5000", "team/b") == ("u", "p")
    assert credentials.find("registry.example:5000", "team/a/x") == ("team", "p")
    assert credentials.find("registry.example:5000", "team/ab") == ("u", "p")
    assert credentials.find("registry.example", "team/a") is None
    assert credentials.find("evil.registry.example:5000", "team/a") is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        docker_config([]),
        docker_config({"a": "hunter2"}),
        docker_config({"a": {"auth": "hunter2"}}),
        docker_config({"a": {"auth": base64.b64encode(b"hunter2").decode()}}),
        docker_config({"a": {"auth": base64.b64encode(b"\xff:hunter2").decode()}}),
        docker_config({"a": {"username": "hunter2"}}),
        docker_config({"a": {"username": "x", "password": ["hunter2"]}}),
    ],
)
def test_a_broken_pull_secret_is_refused_without_showing_it(data: bytes) -> None:
    with pytest.raises(AgentError) as caught:
        RegistryCredentials.from_docker_config(data)
    assert caught.value.reason == "InvalidPullSecret"
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_credentials_do_not_show_in_their_own_text() -> None:
    assert "hunter2" not in repr(RegistryCredentials({"a": ("u", "hunter2")}))


def test_of_two_secrets_the_first_wins() -> None:
    merged = RegistryCredentials({"a": ("1", "")}).merged(RegistryCredentials({"a": ("2", ""), "b": ("3", "")}))
    assert (merged.find("a", "x"), merged.find("b", "x")) == (("1", ""), ("3", ""))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (
            'Bearer realm="https://a/t",service="s",scope="x:y,z"',
            [("bearer", {"realm": "https://a/t", "service": "s", "scope": "x:y,z"})],
        ),
        ('Basic realm="a \\"b\\""', [("basic", {"realm": 'a "b"'})]),
        ("BASIC", [("basic", {})]),
        ("Bearer realm=plain , service=s", [("bearer", {"realm": "plain", "service": "s"})]),
        ('Basic realm="x", Bearer realm="y"', [("basic", {"realm": "x"}), ("bearer", {"realm": "y"})]),
        ("", []),
        ('"', []),
    ],
)
def test_challenges_are_parsed(header: str, expected: list[tuple[str, dict[str, str]]]) -> None:
    assert [(challenge.scheme, challenge.parameters) for challenge in parse_challenges(header)] == expected


@given(st.text(max_size=200))
def test_any_challenge_is_parsed_in_time(header: str) -> None:
    parse_challenges(header)


def test_a_long_broken_challenge_takes_no_time() -> None:
    started = time.monotonic()
    parse_challenges("Bearer " + 'a="\\' * 20_000)
    parse_challenges("Bearer " + "a" * 60_000)
    parse_challenges("Bearer " + "a=" + " " * 60_000)
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("text", "seconds"), [("3", 3.0), ("1.5", 1.5), ("-1", 0.0), ("", None), ("soon", None), ("nan", None)]
)
def test_retry_after_in_seconds(text: str, seconds: float | None) -> None:
    assert retry_after(text) == seconds


def test_retry_after_as_a_date() -> None:
    delay = retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True))
    assert delay is not None
    assert 85 < delay <= 90
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after(None) is None


def test_a_gate_closes_for_the_time_told_plus_jitter_and_never_for_longer_than_the_cap() -> None:
    gates = RegistryGates()
    assert 10 <= gates.close("a", 10) <= 12
    assert gates.remaining("a") > 9
    assert gates.remaining("b") == 0
    assert gates.close("c", float("inf")) <= MAX_DELAY + 5


def test_without_a_told_time_the_wait_doubles_until_an_answer_comes() -> None:
    gates = RegistryGates()
    waits = [gates.close("a", None) for _ in range(9)]
    assert all(2**at <= waits[at] for at in range(6))
    assert max(waits) <= 65
    gates.open("a")
    gates2 = RegistryGates()
    assert gates2.close("a", None) < 2


def test_a_long_wait_is_reported_and_not_sat_out() -> None:
    gates = RegistryGates()
    gates.close("registry.example", 600)
    with pytest.raises(AgentError, match=r"rate-limited until \d\d:\d\d:\d\d UTC") as caught:
        gates.enter("registry.example", Abort())
    assert caught.value.reason == "RegistryRateLimited"
    assert caught.value.retry_after is not None
    assert 590 < caught.value.retry_after < 610


def test_an_aborted_wait_ends_at_once() -> None:
    gates, abort = RegistryGates(), Abort()
    gates.close("a", 20)
    abort.set()
    started = time.monotonic()
    with pytest.raises(AgentError, match="PullCancelled"):
        gates.enter("a", abort)
    assert time.monotonic() - started < 1
