"""JSON Patch (RFC 6902) within bounds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from horchestra.apimachinery.errors import StatusError
from horchestra.storage.patch import MAX_OPERATIONS, json_patch


@pytest.mark.parametrize(
    ("obj", "operations", "result"),
    [
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}, {"op": "replace", "path": "/a", "value": 2}], {"a": 2}),
        ({"a/b": 1, "c~d": 2}, [{"op": "remove", "path": "/a~1b"}, {"op": "remove", "path": "/c~0d"}], {}),
        ({"a": {"b": 1}}, [{"op": "move", "from": "/a/b", "path": "/c"}], {"a": {}, "c": 1}),
        ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}, {"op": "add", "path": "/b/0", "value": 0}],
         {"a": [1], "b": [0, 1]}),
        ({"a": 1}, [], {"a": 1}),
    ],
)  # fmt: skip
def test_operations(obj: Any, operations: Any, result: Any) -> None:
    assert json_patch(obj, operations) == result


def test_the_object_is_left_as_it_was() -> None:
    obj = {"a": {"b": [1]}}
    json_patch(obj, [{"op": "add", "path": "/a/b/0", "value": 0}])
    assert obj == {"a": {"b": [1]}}


@pytest.mark.parametrize(
    "operations",
    [
        {},
        None,
        [3],
        ["x"],
        [[]],
        [{"path": "/a"}],
        [{"op": "frob", "path": "/a"}],
        [{"op": "add", "path": "/b"}],
        [{"op": "add", "path": 5, "value": 1}],
        [{"op": ["add"], "path": "/b", "value": 1}],
        [{"op": "move", "path": "/b"}],
    ],
)
def test_what_is_malformed_is_a_bad_request(operations: Any) -> None:
    with pytest.raises(StatusError) as caught:
        json_patch({"a": 1}, operations)
    assert (caught.value.code, caught.value.reason) == (400, "BadRequest")


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/password", "value": "guess"},
        {"op": "remove", "path": "/missing"},
        {"op": "replace", "path": "/missing/deeper", "value": 1},
        {"op": "add", "path": "/list/7", "value": 1},
        {"op": "remove", "path": "/list/-1"},
        {"op": "copy", "path": "/b", "from": "/missing"},
    ],
)
def test_what_does_not_apply_is_invalid_and_repeats_no_values(operation: Any) -> None:
    with pytest.raises(StatusError) as caught:
        json_patch({"password": "hidden", "list": [1]}, [operation])
    assert caught.value.code == 422
    assert operation["path"] in caught.value.message
    assert "hidden" not in caught.value.message


def test_growth_is_bounded() -> None:
    with pytest.raises(StatusError) as caught:
        json_patch({"a": 1}, [{"op": "add", "path": "/b", "value": 1}] * (MAX_OPERATIONS + 1))
    assert caught.value.code == 413
    began = time.thread_time()
    with pytest.raises(StatusError) as caught:
        json_patch({"a": ["x" * 100]}, [{"op": "copy", "from": "/a", "path": "/a/-"}] * 100)
    assert caught.value.code == 413
    assert time.thread_time() - began < 1


def test_nesting_beyond_all_bounds_is_refused() -> None:
    value: Any = 1
    for _ in range(100):
        value = [value]
    operations: list[dict[str, Any]] = [{"op": "add", "path": "/a", "value": value}]
    place = "/a" + "/0" * 100
    for _ in range(30):
        operations.append({"op": "replace", "path": place, "value": value})
        place += "/0" * 100
    operations.append({"op": "copy", "from": "/a", "path": "/b"})
    with pytest.raises(StatusError) as caught:
        json_patch({}, operations)
    assert caught.value.reason == "BadRequest"
