"""JSON and YAML of strangers."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horchestra.apimachinery.codec import MAX_DEPTH, decode, encode
from horchestra.apimachinery.errors import StatusError

YAML = "application/yaml"
JSON = "application/json"

LAUGHS = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(20)
)


def refused(body: bytes, content_type: str = YAML) -> StatusError:
    with pytest.raises(StatusError) as caught:
        decode(body, content_type)
    assert (caught.value.code, caught.value.reason) == (400, "BadRequest")
    return caught.value


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner),
    max_leaves=20,
)


@given(values)
def test_what_is_encoded_decodes_to_the_same(value: Any) -> None:
    assert decode(encode(value), JSON).value == value


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (LAUGHS, YAML),
        (b"[" * 1_000_000, YAML),
        (b"{a: " * 500_000, YAML),
        (b"- " * 1_000_000, YAML),
        (b"? " * 1_000_000, YAML),
        (b"- a\n" * 700_000, YAML),
        (b"x: &x " + b"y" * 1_000_000 + b"\nz: [*x, *x, *x, *x, *x]", YAML),
        (b"[" * 1_000_000, JSON),
        (b'{"a":' * 500_000, JSON),
        (b"9" * 3_000_000, JSON),
    ],
    ids=["laughs", "lists", "maps", "sequences", "keys", "many", "long alias", "json lists", "json maps", "digits"],
)
def test_a_bomb_is_refused_quickly_and_in_little_memory(body: bytes, content_type: str) -> None:
    began = time.thread_time()
    refused(body, content_type)
    assert time.thread_time() - began < 1
    tracemalloc.start()
    refused(body, content_type)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000_000


def test_nesting_is_allowed_up_to_a_limit() -> None:
    for content_type in (JSON, YAML):
        assert decode(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, content_type).value
        refused(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), content_type)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"a: &a [*a]", "names no anchor that is complete"),
        (b"a: *missing", "names no anchor"),
        (b"!!python/object/apply:os.system ['touch /tmp/x']", "tag"),
        (b"a: !!binary aGk=", "tag"),
        (b"a: !custom x", "tag"),
        (b"a:\n\tb: 1", "line 2, column 1"),
        (b"a: 1\n---\nb: 2", "more than one document"),
        (b"a: .inf", "not a JSON value"),
        (b"a: .NaN", "not a JSON value"),
        (b"a: 1e999", "out of range"),
        (b"a: 99999999999999999999", "64 bits"),
        (b"? [a, b]\n: c", "key must be text"),
        (b"<<: 1\na: 2", "<< must name a map"),
        (b"\xff\xfe", "UTF-8"),
        ("a: 1".encode("utf-16"), "UTF-8"),
        (b"a: 'unclosed", "line 1"),
    ],
)
def test_yaml_that_is_no_json_is_refused_with_the_reason(body: bytes, says: str) -> None:
    assert says in refused(body).message


@pytest.mark.parametrize(
    "body", [b"NaN", b"-Infinity", b"1e999", b"9" * 30, b'"\\ud800"', b"{", b"[1,]", b"{'a':1}", b"1 2"]
)
def test_json_that_is_no_json_is_refused(body: bytes) -> None:
    refused(body, JSON)


def test_plain_yaml_scalars_mean_what_they_mean_to_kubectl() -> None:
    body = b"[yes, no, on, off, y, N, TRUE, ~, null, 0755, 0o17, 0x1f, 0b11, 1_000, -5, +5, 0, 1.5, 1e3, .5, 08, 1:30]"
    assert decode(body, YAML).value == [
        True, False, True, False, True, False, True, None, None,
        493, 15, 31, 3, 1000, -5, 5, 0, 1.5, 1000.0, 0.5, 8.0, "1:30",
    ]  # fmt: skip
    text = b"{a: '0755', b: \"yes\", c: 2001-01-01, d: v1.2, e: '', f: 1.2.3, g: 1e3x}"
    assert decode(text, YAML).value == {
        "a": "0755", "b": "yes", "c": "2001-01-01", "d": "v1.2", "e": "", "f": "1.2.3", "g": "1e3x",
    }  # fmt: skip


def test_keys_are_text_as_written() -> None:
    assert decode(b"{yes: 1, 1: 2, NO: {~: 3}}", YAML).value == {"yes": 1, "1": 2, "NO": {"~": 3}}


def test_keys_given_twice_are_named_and_the_last_one_counts() -> None:
    found = decode(b'{"a":1,"b":[{"c":1,"c":2,"c":3}],"a":{"x":1,"x":2}}', JSON)
    assert found.value == {"a": {"x": 2}, "b": [{"c": 3}]}
    assert found.duplicates == ["a", "a.x", "b[0].c"]
    yaml = decode(b"a: 1\nb:\n- c: 1\n  c: 2\na: 3", YAML)
    assert yaml.value == {"a": 3, "b": [{"c": 2}]}
    assert yaml.duplicates == ["b[0].c", "a"]
    assert type(found.value) is dict
    assert type(found.value["a"]) is dict


def test_aliases_are_copies_and_merge_keys_work() -> None:
    value = decode(b"x: &x {a: 1, b: [1]}\ny: {<<: *x, b: 3}\nz: *x", YAML).value
    assert value == {"x": {"a": 1, "b": [1]}, "y": {"a": 1, "b": 3}, "z": {"a": 1, "b": [1]}}
    value["z"]["b"].append(2)
    assert value["x"]["b"] == [1]


def test_a_mark_at_the_start_and_empty_documents_are_passed_over() -> None:
    assert decode(b"\xef\xbb\xbf{}", JSON).value == {}
    assert decode(b"\xef\xbb\xbfa: 1", YAML).value == {"a": 1}
    assert decode(b"---\na: 1\n---\n", YAML).value == {"a": 1}
    assert decode(b"# nothing", YAML).value is None
    assert decode(b"", JSON).value is None


def test_the_media_type_chooses() -> None:
    assert decode(b"{}", "application/merge-patch+json; charset=utf-8").value == {}
    assert decode(b"a: 1", "application/apply-patch+yaml").value == {"a": 1}
    assert decode(b"{}", "").value == {}
    with pytest.raises(StatusError) as caught:
        decode(b"", "text/html")
    assert caught.value.code == 415


def test_yaml_written_as_json_reads_the_same() -> None:
    value = {"a": [1, 1.5, None, True, "yes", "0755", "x: y", "#", "é", "\n"], "b": {}}
    assert decode(json.dumps(value).encode(), YAML).value == value
