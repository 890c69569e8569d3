"""Label and field selectors."""

from __future__ import annotations

import pytest

from horchestra.apimachinery.errors import StatusError
from horchestra.apimachinery.selectors import FieldSelector, LabelSelector

LABELS = {"app": "web", "tier": "front", "n": "5", "example.com/role": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        (" app = web , tier = front ", True),
        ("app=db", False),
        ("app!=db", True),
        ("missing!=x", True),
        ("app in (web, db)", True),
        ("app in(web)", True),
        ("app notin (web,db)", False),
        ("missing notin (a)", True),
        ("missing in (a)", False),
        ("app", True),
        ("!app", False),
        ("!missing", True),
        ("! missing,app", True),
        ("example.com/role", True),
        ("example.com/role=", True),
        ("missing=", False),
        ("app in ()", False),
        ("n>4", True),
        ("n<5", False),
        ("app>1", False),
        ("in=x", False),
        ("notin notin (x)", True),
    ],
)
def test_labels(text: str, matches: bool) -> None:
    assert LabelSelector.parse(text).matches(LABELS) is matches


@pytest.mark.parametrize(
    "text",
    [
        "=",
        "a=b=c",
        "a in",
        "a in (b",
        "a in b",
        ",",
        "a,",
        ",a",
        "a b",
        "!",
        "bad key!",
        "a=bad value",
        "n>x",
        "a/b/c",
        "-a",
        "(",
        "a=b;c",
        "a" * 20000,
    ],
)
def test_what_is_no_label_selector_is_a_bad_request(text: str) -> None:
    with pytest.raises(StatusError) as caught:
        LabelSelector.parse(text)
    assert caught.value.reason == "BadRequest"


def test_equalities_are_what_an_index_can_answer() -> None:
    selector = LabelSelector.parse("a=b,c in (d),e in (f,g),h!=i,j")
    assert sorted(selector.equalities()) == [("a", "b"), ("c", "d")]


OBJ = {"metadata": {"name": "a", "namespace": "n"}, "spec": {"on": True, "count": 3}, "status": {}}
ALLOWED = {"spec.on": "spec.on", "count": "spec.count", "status.phase": "status.phase"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("metadata.name=a", True),
        ("metadata.name==a,metadata.namespace=n", True),
        ("metadata.name!=a", False),
        ("spec.on=true", True),
        ("count=3", True),
        ("status.phase=", True),
        ("status.phase!=Running", True),
        ("metadata.name=a\\,b", False),
        ("metadata.name=", False),
    ],
)
def test_fields(text: str, matches: bool) -> None:
    assert FieldSelector.parse(text, ALLOWED).matches(OBJ) is matches


def test_escaped_characters_are_part_of_the_value() -> None:
    selector = FieldSelector.parse(r"metadata.name=a\,b\=c\\d", {})
    assert selector.matches({"metadata": {"name": r"a,b=c\d"}})


@pytest.mark.parametrize("text", ["spec.secret=x", "metadata.name", "=x", "a=b=c", "metadata.name=a\\x", "x" * 20000])
def test_what_is_no_field_selector_is_a_bad_request(text: str) -> None:
    with pytest.raises(StatusError) as caught:
        FieldSelector.parse(text, ALLOWED)
    assert caught.value.reason == "BadRequest"


def test_a_name_that_is_demanded_turns_a_list_into_a_get() -> None:
    assert FieldSelector.parse("metadata.name=a,count=3", ALLOWED).exactly("metadata.name") == "a"
    assert FieldSelector.parse("metadata.name!=a", {}).exactly("metadata.name") is None
