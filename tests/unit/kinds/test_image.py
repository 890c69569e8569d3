"""The controller takes exactly the images that nodes can read."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.errors import AgentError
from agent.images.reference import ImageReference
from horchestra.kinds import image
from horchestra.kinds.application import Application

DIGEST = "sha256:" + "a" * 64
PIECES = [
    "a",
    "web",
    "A",
    "localhost",
    "docker.io",
    "index.docker.io",
    "Registry.Example",
    "[::1]",
    "x" * 120,
    "t" * 128,
]
MARKS = ["/", ":", "@", ".", "_", "__", "-", "--", " ", "\n", "\0", "é", "5000", DIGEST, "sha512:" + "b" * 128, "md5:1"]


def taken_by_the_node(text: str) -> bool:
    try:
        ImageReference.parse(text)
    except AgentError:
        return False
    return True


@given(st.lists(st.sampled_from(PIECES + MARKS), max_size=8).map("".join) | st.text(max_size=40))
@example("postgres")
@example("postgres:18-alpine")
@example("registry:5000/app:1")
@example("10.0.0.1:5000/a/b/c:1")
@example("[::1]:5000/app")
@example("Registry.Example/team/app")
@example(f"postgres:18@{DIGEST}")
@example(f"a@sha512:{'b' * 128}")
@example("gcr.io/a__b/c.d-e_f--g:v1.0_x")
@example("a" * 237)
@example("a" * 238)
@example(f"app:{'t' * 129}")
@example("registry.example:port/app")
@example(f"app@{DIGEST}@{DIGEST}")
@example("a..b")
@example("app:v1\n")
def test_what_a_node_can_read_is_what_is_taken(text: str) -> None:
    assert (image.fault(text) == "") == taken_by_the_node(text), text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("https://registry.example/app", "leave out the scheme"),
        ("Postgres", "'Postgres' is not a repository; use lower-case"),
        ("app:", "'' is not a tag"),
        ("app@sha256:123", "64 hexadecimal digits"),
        ("registry.example:port/app", "is not a registry"),
        ("x" * 300, "longer than 255"),
    ],
)
def test_a_refusal_says_what_to_write(text: str, said: str) -> None:
    app = Application.model_validate({"metadata": {"name": "web"}, "spec": {"image": text}})
    (cause,) = app.validate_object()
    assert cause.field == "spec.image"
    assert said in cause.message
