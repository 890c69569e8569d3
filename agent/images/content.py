"""One layer as it streams in: compressed bytes to plain bytes, both hashed on the way and checked at the end."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress

from agent.errors import AgentError
from agent.images.inflate import inflate
from agent.images.manifest import Descriptor
from agent.images.transfers import Transfer

_MAX_BYTES = 64 << 30
_CHECK_BYTES = 32 << 20
_DRAIN_BYTES = 64 << 20


class Digest:
    """Hashes a stream whose digest is known in advance."""

    def __init__(self, expected: str) -> None:
        self._algorithm = expected.partition(":")[0]
        self._expected = expected
        self._hash = hashlib.new(self._algorithm)
        self.update = self._hash.update

    def verify(self, what: str) -> None:
        """Raises AgentError DigestMismatch."""
        actual = f"{self._algorithm}:{self._hash.hexdigest()}"
        if actual != self._expected:
            raise AgentError("DigestMismatch", f"{what} should have digest {self._expected} but has {actual}")


class LayerContent:
    """The layer in `blob`, which unpacks to `diff_id`; `image` is its image's name, for messages.

    `check_space` is called now and then and raises AgentError when the disk fills up.
    """

    def __init__(
        self, blob: Descriptor, diff_id: str, image: str, transfer: Transfer, check_space: Callable[[], None]
    ) -> None:
        self._blob, self._image, self._transfer = blob, image, transfer
        self._check_space = check_space
        self._compressed, self._plain = Digest(blob.digest), Digest(diff_id)

    def plain(self, blob_pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Plain bytes of the compressed `blob_pieces`, which are read to their end. Raises AgentError."""
        received = self._received(blob_pieces)
        total = checked = 0
        try:
            for piece in inflate(received):
                self._transfer.abort.check()
                self._plain.update(piece)
                total += len(piece)
                if total > _MAX_BYTES:
                    raise AgentError("InvalidImage", f"layer unpacks to more than {_MAX_BYTES >> 30} GiB")
                if total - checked >= _CHECK_BYTES:
                    self._check_space()
                    checked = total
                yield piece
            for _ in received:  # what decompression did not need still counts for the digest
                pass
        except AgentError as error:
            self.explain(error, received)
            raise

    def explain(self, error: AgentError, rest: Iterator[bytes]) -> None:
        """After InvalidImage: raises DigestMismatch if the bytes were damaged on the way, which the `rest` tells."""
        if error.reason != "InvalidImage":
            return
        left = _DRAIN_BYTES
        with suppress(AgentError):
            while left > 0 and (piece := next(rest, b"")):
                left -= len(piece)
        if self._transfer.received == self._blob.size:
            self._compressed.verify(f"layer of {self._image}")

    def verify(self) -> None:
        """Checks both digests, after the last byte. Raises AgentError DigestMismatch."""
        self._compressed.verify(f"layer of {self._image}")
        self._plain.verify(f"unpacked layer {self._blob.digest} of {self._image}")

    def _received(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._compressed.update(piece)
            self._transfer.received += len(piece)
            yield piece
