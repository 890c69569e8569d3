import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horchestra.apimachinery.errors import StatusError
from horchestra.apiserver.protobuf import MAGIC, decode


def varint(number: int) -> bytes:
    out = b""
    number &= 2**64 - 1
    while number > 127:
        out += bytes((number & 127 | 128,))
        number >>= 7
    return out + bytes((number,))


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def envelope(version: str, kind: str, raw: bytes) -> bytes:
    return MAGIC + field(1, field(1, version) + field(2, kind)) + field(2, raw) + field(3, "") + field(4, "")


METADATA = (
    field(1, "db") + field(2, "") + field(3, "default") + field(8, b"") + field(11, field(1, "a") + field(2, "b"))
)


def test_a_secret_as_kubectl_sends_it() -> None:
    raw = field(1, METADATA) + field(2, field(1, "password") + field(2, b"\xff\x00")) + field(3, "Opaque")
    assert decode(envelope("v1", "Secret", raw)) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "db", "namespace": "default", "labels": {"a": "b"}},
        "data": {"password": base64.b64encode(b"\xff\x00").decode()},
        "type": "Opaque",
    }


def test_a_map_entry_without_a_value_is_empty() -> None:
    raw = field(1, METADATA) + field(2, field(1, "empty"))
    assert decode(envelope("v1", "ConfigMap", raw))["data"] == {"empty": ""}


def test_delete_options_keep_a_grace_period_of_zero() -> None:
    raw = field(1, 0) + field(2, field(1, "uid-1")) + field(4, "Background") + field(5, "All")
    assert decode(envelope("v1", "DeleteOptions", raw)) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "uid-1"},
        "propagationPolicy": "Background",
        "dryRun": ["All"],
    }


def test_negative_numbers_and_times() -> None:
    raw = field(1, field(1, "x") + field(7, -3) + field(8, field(1, 1767225600)))
    assert decode(envelope("v1", "Namespace", raw))["metadata"] == {
        "name": "x",
        "generation": -3,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }


def test_an_eviction_with_its_options() -> None:
    raw = field(1, field(1, "web")) + field(2, field(5, "All"))
    found: dict[str, Any] = decode(envelope("policy/v1", "Eviction", raw))
    assert found["deleteOptions"] == {"dryRun": ["All"]}


def test_an_unknown_kind_is_told_to_send_json() -> None:
    with pytest.raises(StatusError, match="send JSON") as caught:
        decode(envelope("v1", "ServiceAccount", b""))
    assert caught.value.code == 415


@pytest.mark.parametrize("body", [b"", b"k8s", b"{}", MAGIC + b"\xff" * 20, MAGIC + b"\x0a\x7f", MAGIC + b"\x09" * 9])
def test_what_is_damaged_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        decode(body)
    assert caught.value.code in (400, 415)


@settings(max_examples=300)
@given(st.binary(max_size=200), st.sampled_from(["Secret", "ConfigMap", "Namespace", "DeleteOptions", "Eviction"]))
def test_no_bytes_can_do_more_than_fail(raw: bytes, kind: str) -> None:
    outcome: Any
    try:
        outcome = decode(envelope("v1", kind, raw))["kind"]
    except StatusError as error:
        outcome = error.code
    assert outcome in (kind, 400)
