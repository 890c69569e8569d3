"""Decompresses a layer while it streams: gzip, zstd or plain, told apart by the bytes and never by the media type.

Output comes in bounded pieces however well the input compresses, so memory stays flat.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import IO, cast

import zstandard
from isal import igzip_lib

from agent.errors import AgentError

PIECE = 1 << 18
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"  # after one byte 0x50..0x5f (RFC 8878 3.1.2)
_GZIP_ERROR = cast(type[Exception], igzip_lib.error)  # its stub takes the class for an instance
_MAX_WINDOW = 1 << 27  # what zstd itself accepts without being asked (--long=27)


def inflate(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Plain bytes of `chunks`. Raises AgentError InvalidImage when the compressed data is damaged or cut."""
    source = (chunk for chunk in chunks if chunk)
    head = b""
    while len(head) < 4 and (chunk := next(source, None)) is not None:
        head += chunk
    source_again = chain((head,), source) if head else iter(())
    if head.startswith(_GZIP):
        return _gunzip(source_again)
    if head.startswith(_ZSTD) or (head[1:4] == _ZSTD_SKIPPABLE and 0x50 <= head[0] <= 0x5F):
        return _unzstd(source_again)
    return source_again


def _gunzip(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """All members one after another: seekable layers consist of thousands of them."""
    rest = b""
    while rest or (rest := next(chunks, b"")):
        member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        while True:
            try:
                output = member.decompress(rest, PIECE)
            except _GZIP_ERROR as error:
                raise AgentError("InvalidImage", f"layer holds damaged gzip data: {error}") from error
            if output:
                yield output
            if member.eof:
                rest = member.unused_data
                break
            rest = b""
            if member.needs_input and not (rest := next(chunks, b"")):
                raise AgentError("InvalidImage", "layer ends in the middle of its gzip data")


def _unzstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    source = cast(IO[bytes], _Readable(chunks))  # read() is all that zstandard calls
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    reader = decompressor.stream_reader(source, read_size=PIECE, read_across_frames=True)
    while True:
        try:
            output = reader.read(PIECE)
        except zstandard.ZstdError as error:
            raise AgentError("InvalidImage", f"layer holds damaged zstd data: {error}") from error
        if not output:
            return
        yield output


class _Readable:
    """Chunks as the file that zstandard wants to read from."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        piece, self._rest = (self._rest[:size], self._rest[size:]) if size >= 0 else (self._rest, memoryview(b""))
        return bytes(piece)
