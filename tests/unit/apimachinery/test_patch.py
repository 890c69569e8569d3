"""Merge patches (RFC 7386) and strategic merge patches as kubectl sends them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from horchestra.apimachinery.errors import StatusError
from horchestra.apimachinery.patch import merge, strategic

RFC = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("obj", "patch", "result"), RFC)
def test_the_examples_of_rfc_7386(obj: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy((obj, patch))
    assert merge(obj, patch) == result
    assert (obj, patch) == before


STRATEGIC = [
    ({"data": {"a": "1"}}, {"data": {"a": None, "b": "2"}}, {"data": {"b": "2"}}),
    (
        {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]},
        {"containers": [{"name": "a", "image": "2"}, {"name": "c"}], "$setElementOrder/containers": [{"name": "a"}]},
        {"containers": [{"name": "a", "image": "2"}, {"name": "b"}, {"name": "c"}]},
    ),
    (
        {"env": [{"name": "a"}, {"name": "b"}]},
        {"env": [{"name": "a", "$patch": "delete"}, {"name": "nobody", "$patch": "delete"}]},
        {"env": [{"name": "b"}]},
    ),
    ({"env": [{"name": "a"}]}, {"env": [{"name": "z"}, {"$patch": "replace"}]}, {"env": [{"name": "z"}]}),
    ({"spec": {"a": 1, "b": 2}}, {"spec": {"c": 3, "$patch": "replace"}}, {"spec": {"c": 3}}),
    ({"spec": {"a": 1}, "x": 1}, {"spec": {"$patch": "delete"}}, {"x": 1}),
    ({"spec": {"a": 1, "b": 2}}, {"spec": {"b": 3, "$retainKeys": ["b"]}}, {"spec": {"b": 3}}),
    (
        {"metadata": {"finalizers": ["a", "b"]}},
        {"metadata": {"finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["a"]}},
        {"metadata": {"finalizers": ["b", "c"]}},
    ),
    (
        {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "x"}]}},
        {"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "True"}]}},
        {
            "status": {
                "conditions": [
                    {"type": "Ready", "status": "True", "reason": "x"},
                    {"type": "Other", "status": "True"},
                ]
            }
        },
    ),
    ({"spec": {"taints": [{"key": "a"}]}}, {"spec": {"taints": [{"key": "b"}]}}, {"spec": {"taints": [{"key": "b"}]}}),
    ({}, {"rules": [{"verbs": ["get"]}]}, {"rules": [{"verbs": ["get"]}]}),
    (
        {"metadata": {"ownerReferences": [{"uid": "1", "name": "a"}]}},
        {"metadata": {"ownerReferences": [{"uid": "1", "$patch": "delete"}]}},
        {"metadata": {"ownerReferences": []}},
    ),
    ({"containers": "odd"}, {"containers": [{"name": "a"}]}, {"containers": [{"name": "a"}]}),
    ({"containers": [{"name": "a"}]}, {"containers": [1, "x"]}, {"containers": [1, "x"]}),
]


@pytest.mark.parametrize(("obj", "patch", "result"), STRATEGIC)
def test_strategic_merge(obj: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy((obj, patch))
    assert strategic(obj, patch) == result
    assert (obj, patch) == before


@pytest.mark.parametrize(
    "patch", [{"$patch": "explode"}, {"a": {"$patch": 1}}, {"$retainKeys": "a"}, {"$deleteFromPrimitiveList/a": 1}]
)
def test_a_malformed_directive_is_a_bad_request(patch: Any) -> None:
    with pytest.raises(StatusError) as caught:
        strategic({}, patch)
    assert caught.value.reason == "BadRequest"
