import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horchestra.nodes import nodestatus
from horchestra.nodes.bounds import MESSAGE_BYTES, cut, cut_all
from horchestra.nodes.conditions import condition, merge
from horchestra.nodes.nodestatus import BadReport
from horchestra.nodes.status import check, laid_over
from proto import node_pb2 as pb

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.text())
def test_a_cut_text_is_short_and_shows_no_control_characters(text: str) -> None:
    result = cut(text)
    assert len(result.encode()) <= MESSAGE_BYTES
    assert all(c.isprintable() or c in "\n\t" for c in result)


def test_a_cut_keeps_whole_characters_and_is_marked() -> None:
    assert cut("\u00e9" * 1000).endswith("\u2026")
    assert cut("plain") == "plain"


@given(JSON)
def test_any_json_is_either_refused_or_bounded(value: object) -> None:
    body = json.dumps(value).encode()
    for take in (lambda: nodestatus.reported({}, body), lambda: nodestatus.volumes([], body)):
        try:
            result = take()
        except BadReport:
            continue
        json.dumps(result, allow_nan=False)
    assert cut_all(value) is not NotImplemented


@given(st.binary(max_size=200).filter(lambda data: not data.strip().startswith(b"{")))
def test_bytes_that_are_no_status_are_refused(data: bytes) -> None:
    report = pb.ApplicationReport(name="web", uid="u", status_json=data)
    with pytest.raises(BadReport):
        check(report)


def test_a_report_about_another_uid_or_node_is_not_laid_over() -> None:
    obj = {"metadata": {"uid": "u1", "generation": 2}, "spec": {"nodeName": "n1"}, "status": {"node": "n1"}}
    report = check(pb.ApplicationReport(name="web", uid="u1", generation=9, status_json=b'{"phase":"Running"}'))
    assert laid_over(obj, report, "n2", []) is None
    other = check(pb.ApplicationReport(name="web", uid="u2", generation=1, status_json=b"{}"))
    assert laid_over(obj, other, "n1", []) is None
    written = laid_over(obj, report, "n1", ["10.0.0.5"])
    assert written is not None
    assert written["status"]["observedGeneration"] == 2
    assert written["status"]["addresses"] == ["10.0.0.5"]


def test_use_of_a_volume_that_hardly_changed_is_worth_no_write() -> None:
    def report(size: int) -> bytes:
        return json.dumps([{"uid": "u", "name": "data", "path": "/v/u", "bytes": size}]).encode()

    stored = nodestatus.volumes([], report(1000))
    assert nodestatus.volumes(stored, report(1050)) == stored
    assert nodestatus.volumes(stored, report(1200))[0]["bytes"] == 1200


def test_a_condition_remembers_when_its_status_changed() -> None:
    first = merge([], [condition("Ready", "True", "A")], "t1")
    second = merge(first, [condition("Ready", "True", "B", "words")], "t2")
    third = merge(second, [condition("Ready", "False", "C")], "t3")
    assert [c[0]["lastTransitionTime"] for c in (first, second, third)] == ["t1", "t1", "t3"]
