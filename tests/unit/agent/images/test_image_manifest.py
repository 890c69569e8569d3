import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import AgentError
from agent.images.manifest import ImageIndex, ImageManifest, chain_ids, parse_document, parse_manifest
from agent.images.platform import Platform

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")
INDEX = "application/vnd.oci.image.index.v1+json"


def entry(digest: str, platform: str = "", **more: Any) -> dict[str, Any]:
    names = dict(zip(("os", "architecture", "variant"), platform.split("/"), strict=False))
    return {"digest": digest, "size": 3, "mediaType": "x"} | ({"platform": names} if platform else {}) | more


def index(*entries: dict[str, Any]) -> ImageIndex:
    found = parse_manifest(json.dumps({"schemaVersion": 2, "manifests": entries}).encode(), INDEX)
    assert isinstance(found, ImageIndex)
    return found


def chosen(platform: str, *entries: dict[str, Any]) -> list[str]:
    return [item.digest for item in index(*entries).candidates(Platform(*platform.split("/")))]


def test_attestations_are_never_chosen() -> None:
    annotated = entry(C, "linux/amd64", annotations={"vnd.docker.reference.type": "attestation-manifest"})
    assert chosen("linux/amd64", entry(A, "unknown/unknown"), annotated, entry(B, "linux/amd64")) == [B]


def test_the_best_variant_comes_first_and_a_newer_one_never() -> None:
    arms = [entry(A, "linux/arm/v6"), entry(B, "linux/arm/v7"), entry(C, "linux/arm64/v8")]
    assert chosen("linux/arm/v7", *arms) == [B, A]
    assert chosen("linux/arm/v6", *arms) == [A]
    assert chosen("linux/arm64", *arms) == [C]
    assert chosen("linux/amd64", entry(A, "linux/amd64/v3"), entry(B, "linux/amd64")) == [B]


def test_entries_without_a_platform_come_last() -> None:
    assert chosen("linux/amd64", entry(A), entry(B, "linux/arm64"), entry(C, "linux/amd64")) == [C, A]


def test_an_index_says_which_platforms_it_has() -> None:
    assert index(entry(A, "linux/arm64"), entry(B, "unknown/unknown"), entry(C)).platforms() == {"linux/arm64"}


def test_a_manifest_is_read_whatever_media_type_it_claims() -> None:
    data = json.dumps({"schemaVersion": 2, "config": entry(A), "layers": [entry(B), entry(C)]}).encode()
    manifest = parse_manifest(data, "text/plain")
    assert isinstance(manifest, ImageManifest)
    assert [layer.digest for layer in manifest.layers] == [B, C]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"nonsense",
        b"[" * 100_000,
        json.dumps({"manifests": [], "layers": []}).encode(),
        json.dumps({"schemaVersion": 1, "fsLayers": []}).encode(),
        json.dumps({"schemaVersion": 2}).encode(),
        json.dumps({"config": entry(A), "layers": {}}).encode(),
        json.dumps({"config": entry("sha256:1")}).encode(),
        json.dumps({"config": entry("md5:" + "a" * 32)}).encode(),
        json.dumps({"config": entry(A, size=-1)}).encode(),
        json.dumps({"config": entry(A, size=True)}).encode(),
        json.dumps({"config": entry(A, size="3")}).encode(),
        json.dumps({"config": entry(A, size=1 << 30)}).encode(),
        json.dumps({"config": entry(A), "layers": [entry(B)] * 500}).encode(),
        json.dumps({"config": entry(A), "layers": [1]}).encode(),
        json.dumps({"config": entry("../../etc/passwd")}).encode(),
        b'{"config": {"size": 1' + b"0" * 5000 + b"}}",
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(AgentError) as caught:
        parse_manifest(data, "")
    assert caught.value.reason == "InvalidManifest"
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("value", [None, [], {"rootfs": {"diff_ids": "x"}}, {"rootfs": {"diff_ids": ["sha256:1"]}}])
def test_a_configuration_needs_valid_diff_ids(value: Any) -> None:
    with pytest.raises(AgentError, match="InvalidImage"):
        parse_document(json.dumps(value).encode())


@pytest.mark.parametrize("value", [{}, {"rootfs": None}, {"rootfs": {"diff_ids": None}}])
def test_a_configuration_may_have_no_layers(value: Any) -> None:
    assert parse_document(json.dumps(value).encode()).diff_ids == ()


def test_chain_ids_follow_the_specification() -> None:
    first, second = chain_ids((A, B))
    assert first == A
    assert second == "sha256:" + hashlib.sha256(f"{A} {B}".encode()).hexdigest()
    assert chain_ids(()) == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just(A),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["manifests", "layers", "config", "digest", "size", "platform", "os", "rootfs", "diff_ids", "Env"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_read_or_refused_with_a_reason(value: Any) -> None:
    for read in (lambda data: parse_manifest(data, ""), parse_document):
        try:
            read(json.dumps(value).encode())
        except AgentError as error:
            reason = error.reason
        else:
            reason = "InvalidImage"
        assert reason in ("InvalidImage", "InvalidManifest")


def test_this_machine_has_a_platform() -> None:
    assert Platform.host().os == "linux"
    assert Platform.host().architecture not in ("", "x86_64", "aarch64")
