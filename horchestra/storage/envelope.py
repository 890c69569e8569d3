"""Encryption at rest of kinds that ask for it: AES-256-GCM with a key that is not in the database.

The key file holds one `ID BASE64` a line. The first key seals, all of them open: to rotate, put a new line first and
restart; remove an old line when nothing sealed with it is left. Replicas need the same file.
"""

from __future__ import annotations

import base64
import os
import secrets
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_FORMAT = b"\x01"
_ID = 8
_NONCE = 12


class EnvelopeError(Exception):
    """A sealed body cannot be opened, or the key file is unusable; the message says which and what to do."""


class Envelope:
    def __init__(self, keys: dict[bytes, bytes], path: Path) -> None:
        """`keys`: 8-byte id to 32-byte key; the first one seals."""
        self._path = path
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._sealing = next(iter(keys))

    @classmethod
    def load_or_create(cls, path: Path) -> Envelope:
        """Raises EnvelopeError when the file is unreadable or others could read it."""
        with suppress(FileExistsError):
            _create(path)
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise EnvelopeError(f"{path} has mode {mode:04o}: others could read the key; run chmod 600 {path}")
        try:
            lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
            keys = {bytes.fromhex(key_id): base64.b64decode(key, validate=True) for key_id, key in lines}
        except ValueError as error:
            raise EnvelopeError(f"{path} is not a key file (one `ID BASE64` a line): {error}") from None
        if not keys or any(len(i) != _ID or len(k) != 32 for i, k in keys.items()):
            raise EnvelopeError(f"{path} is not a key file: each line needs an id of 16 hex digits and a 32-byte key")
        return cls(keys, path)

    def seal(self, key: str, body: bytes) -> bytes:
        """`key`: where it is stored; the sealed body opens nowhere else."""
        nonce = secrets.token_bytes(_NONCE)
        sealed = self._ciphers[self._sealing].encrypt(nonce, body, key.encode())
        return _FORMAT + self._sealing + nonce + sealed

    def open(self, key: str, blob: bytes) -> bytes:
        """A body as stored; one that is not sealed is returned as it is. Raises EnvelopeError."""
        if blob[:1] != _FORMAT:
            return blob
        key_id, nonce, sealed = blob[1 : 1 + _ID], blob[1 + _ID : 1 + _ID + _NONCE], blob[1 + _ID + _NONCE :]
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise EnvelopeError(
                f"{key} is sealed with key {key_id.hex()}, which is not in {self._path}; "
                "put back the key file that belongs to this database"
            )
        try:
            return cipher.decrypt(nonce, sealed, key.encode())
        except InvalidTag:
            raise EnvelopeError(f"{key} was changed in the database or belongs to another object") from None


def _create(path: Path) -> None:
    """Raises FileExistsError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        line = f"{secrets.token_hex(_ID)} {base64.b64encode(secrets.token_bytes(32)).decode()}\n"
        os.write(handle, line.encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
