from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import AgentError
from agent.images.reference import ImageReference

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("postgres", "docker.io/library/postgres:latest"),
        ("postgres:18", "docker.io/library/postgres:18"),
        ("bitnami/redis:7", "docker.io/bitnami/redis:7"),
        ("docker.io/postgres:18-alpine", "docker.io/library/postgres:18-alpine"),
        ("index.docker.io/library/postgres", "docker.io/library/postgres:latest"),
        ("localhost/app", "localhost/app:latest"),
        ("registry:5000/app:1", "registry:5000/app:1"),
        ("10.0.0.1:5000/a/b/c:1", "10.0.0.1:5000/a/b/c:1"),
        ("[::1]:5000/app", "[::1]:5000/app:latest"),
        ("Registry.Example/team/app", "registry.example/team/app:latest"),
        (f"postgres@{DIGEST}", f"docker.io/library/postgres@{DIGEST}"),
        (f"postgres:18@{DIGEST}", f"docker.io/library/postgres:18@{DIGEST}"),
        ("gcr.io/a__b/c.d-e_f--g:v1.0_x", "gcr.io/a__b/c.d-e_f--g:v1.0_x"),
    ],
)
def test_a_name_is_normalised_as_docker_does(text: str, full: str) -> None:
    reference = ImageReference.parse(text)
    assert str(reference) == full
    assert ImageReference.parse(full) == reference


@pytest.mark.parametrize(
    "text",
    [
        "",
        " postgres",
        "postgres:",
        "postgres:18 ",
        "Postgres",
        "a//b",
        "/a",
        "a/",
        "a/../b",
        "http://registry.example/app",
        "registry.example:port/app",
        "app:tag:tag",
        "app@sha256:123",
        f"app@md5:{'a' * 32}",
        f"app@{DIGEST}@{DIGEST}",
        "app\n",
        "app:v1\n",
        "app\0",
        "a" * 300,
        f"app:{'t' * 129}",
        "pöstgres",
        "-a/b",
        "a..b",
    ],
)
def test_what_is_no_name_is_refused_with_the_name_in_the_message(text: str) -> None:
    with pytest.raises(AgentError) as caught:
        ImageReference.parse(text)
    assert caught.value.reason == "InvalidImageName"
    assert caught.value.message.startswith("image '")


@given(st.text(max_size=60))
def test_parsing_ends_in_a_reference_or_in_a_refusal(text: str) -> None:
    with suppress(AgentError):
        reference = ImageReference.parse(text)
        assert ImageReference.parse(str(reference)) == reference
        assert str(reference).isprintable()


def test_a_pinned_reference_keeps_its_tag() -> None:
    assert str(ImageReference.parse("postgres:18").pinned(DIGEST)) == f"docker.io/library/postgres:18@{DIGEST}"
