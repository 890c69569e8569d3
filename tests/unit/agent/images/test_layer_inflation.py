import gzip
import random
import resource
from collections.abc import Callable, Iterator

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib

from agent.errors import AgentError
from agent.images.inflate import PIECE, inflate

DATA = random.Random(1).randbytes(300_000) + bytes(2_000_000)
ZSTD_SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [3, 1000, 1 << 30])
@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress(DATA[:400_000]),
        zstandard.compress(DATA[:400_000]),
        ZSTD_SKIPPABLE + zstandard.compress(DATA[:400_000]),
        DATA[:400_000],
        gzip.compress(DATA[:300_000]) + gzip.compress(DATA[300_000:400_000]),
        zstandard.compress(DATA[:300_000]) + ZSTD_SKIPPABLE + zstandard.compress(DATA[300_000:400_000]),
    ],
    ids=["gzip", "zstd", "skippable frame", "plain", "two gzip members", "two zstd frames"],
)
def test_the_bytes_decide_how_a_layer_is_inflated(packed: bytes, size: int) -> None:
    assert b"".join(inflate(pieces(packed, size))) == DATA[:400_000]


def test_nothing_inflates_to_nothing() -> None:
    assert list(inflate([])) == []
    assert b"".join(inflate([b"", b"a", b""])) == b"a"


@pytest.mark.parametrize("cut", [3, 20, 5000, -1])
def test_cut_gzip_data_is_refused(cut: int) -> None:
    with pytest.raises(AgentError, match="in the middle of its gzip data"):
        list(inflate([gzip.compress(DATA)[:cut]]))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor(write_checksum=True).compress])
def test_damaged_data_is_refused(pack: Callable[[bytes], bytes]) -> None:
    damaged = bytearray(pack(DATA))
    damaged[1000:1100] = bytes(100)
    with pytest.raises(AgentError, match="damaged"):
        list(inflate([bytes(damaged)]))


@given(st.sampled_from([b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"]), st.binary(max_size=300))
def test_any_bytes_inflate_or_are_refused(magic: bytes, noise: bytes) -> None:
    try:
        list(inflate([magic + noise]))
    except AgentError as error:
        refusal = error.reason
    else:
        refusal = "InvalidImage"
    assert refusal == "InvalidImage"


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_bomb_takes_no_memory(kind: str) -> None:
    packer = (
        isal_zlib.compressobj(3, isal_zlib.DEFLATED, 31) if kind == "gzip" else zstandard.ZstdCompressor().compressobj()
    )
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(400)) + packer.flush()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest = max(len(piece) for piece in inflate([bomb]))
    assert largest <= PIECE
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
