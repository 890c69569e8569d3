"""Reads tar streams (ustar, pax, GNU) header by header, trusting nothing.

tarfile costs 25 µs per entry, its filters refuse device nodes and are missing from Debian 12's Python; a root file
system needs devices, so the format is read here. Source: POSIX.1-2017 pax, GNU tar manual "Basic Tar Format".
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from agent.errors import AgentError

BLOCK = 512
_EXTENSION_LIMIT = 1 << 20  # one pax header or GNU long name
_XATTR = b"SCHILY.xattr."
_HEADER_ONLY = frozenset(b"123456")
_REGULAR = (b"0", b"\0", b"7")
_FIELDS = struct.Struct("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12s")


class Kind:
    """Type flags of entries that a layer may hold."""

    FILE = b"0"
    HARD_LINK = b"1"
    SYMLINK = b"2"
    CHARACTER = b"3"
    BLOCK = b"4"
    DIRECTORY = b"5"
    FIFO = b"6"


@dataclass(slots=True)
class TarEntry:
    """One entry; `size` is that of the content, 0 for all but files. `mode` holds permission bits only."""

    kind: bytes
    name: bytes
    link: bytes
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    major: int = 0
    minor: int = 0
    xattrs: dict[bytes, bytes] = field(default_factory=dict)


class TarReader:
    """Entries of a tar stream. Content not taken through `content()` is skipped when the next entry is asked for."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._buffer = memoryview(b"")
        self._left = 0  # content of the current entry not read yet
        self._padding = 0

    def __iter__(self) -> Iterator[TarEntry]:
        extension: dict[bytes, bytes] = {}
        while (header := self._next_header()) is not None:
            kind = header[156:157]
            try:
                if kind in (b"x", b"X"):
                    extension |= _pax_records(self._extension(header))
                elif kind == b"L":
                    extension[b"path"] = self._extension(header).rstrip(b"\0")
                elif kind == b"K":
                    extension[b"linkpath"] = self._extension(header).rstrip(b"\0")
                elif kind == b"g":
                    self._extension(header)  # git's comment; Docker ignores global headers too
                else:
                    entry = _entry(header, extension)
                    self._left, self._padding = entry.size, -entry.size % BLOCK
                    yield entry
                    extension = {}
            except (ValueError, IndexError, struct.error) as error:
                raise AgentError("InvalidImage", f"layer holds a broken tar header: {error}") from error

    def content(self) -> Iterator[memoryview]:
        """Bytes of the current entry, in pieces of the size in which they arrive."""
        while self._left:
            piece = self._piece(self._left)
            self._left -= len(piece)
            yield piece

    def drain(self) -> None:
        """Reads what follows the end marker, so that whoever feeds the chunks has seen the whole stream."""
        for _ in self._chunks:
            pass

    def _next_header(self) -> bytes | None:
        for _ in self.content():
            pass
        self._exactly(self._padding)
        self._padding = 0
        zeros = 0
        while True:
            header = self._exactly(BLOCK, at_end=True)
            if not header:
                return None
            if any(header):
                return header
            zeros += 1
            if zeros == 2:
                return None

    def _extension(self, header: bytes) -> bytes:
        size = _checked_size(header)
        if size > _EXTENSION_LIMIT:
            raise ValueError(f"extension header of {size} bytes")
        data = self._exactly(size)
        self._exactly(-size % BLOCK)
        return data

    def _exactly(self, count: int, at_end: bool = False) -> bytes:
        if len(self._buffer) >= count:
            data, self._buffer = bytes(self._buffer[:count]), self._buffer[count:]
            return data
        parts: list[bytes] = []
        missing = count
        while missing:
            piece = self._piece(missing, at_end=at_end and missing == count)
            if not piece:
                return b""
            parts.append(bytes(piece))
            missing -= len(piece)
        return b"".join(parts)

    def _piece(self, most: int, at_end: bool = False) -> memoryview:
        while not self._buffer:
            try:
                self._buffer = memoryview(next(self._chunks))
            except StopIteration:
                if at_end:
                    return self._buffer
                raise AgentError("InvalidImage", "layer ends in the middle of a tar entry") from None
        piece, self._buffer = self._buffer[:most], self._buffer[most:]
        return piece


def _entry(header: bytes, extension: dict[bytes, bytes]) -> TarEntry:
    size = _checked_size(header)
    (name, mode, uid, gid, _, mtime, _, kind, link, magic, _, _, major, minor, prefix, _) = _FIELDS.unpack(header)
    name, link = _until_nul(name), _until_nul(link)
    if magic[:6] == b"ustar\0" and prefix[0]:
        name = _until_nul(prefix) + b"/" + name
    entry = TarEntry(
        b"0" if kind in _REGULAR else kind,
        name,
        link,
        _number(mode) & 0o7777,
        _number(uid),
        _number(gid),
        size,
        _number(mtime) * 1_000_000_000,
    )
    if extension:
        _apply(extension, entry)
    if kind[0] in _HEADER_ONLY:
        entry.size = 0
        if kind in (Kind.CHARACTER, Kind.BLOCK):
            entry.major, entry.minor = _number(major), _number(minor)
    elif kind not in _REGULAR:
        raise ValueError(f"entry {name!r} has the unsupported type {kind!r}")
    elif entry.name.endswith(b"/"):  # tar before POSIX marked directories by name only
        entry.kind = Kind.DIRECTORY
    if entry.size < 0 or b"\0" in entry.name or b"\0" in entry.link:
        raise ValueError(f"entry {entry.name!r} has a negative size or a NUL in its name")
    return entry


def _apply(extension: dict[bytes, bytes], entry: TarEntry) -> None:
    for key, value in extension.items():
        if key == b"path":
            entry.name = value
        elif key == b"linkpath":
            entry.link = value
        elif key == b"size":
            entry.size = int(value)
        elif key == b"uid":
            entry.uid = int(value)
        elif key == b"gid":
            entry.gid = int(value)
        elif key == b"mtime":
            entry.mtime_ns = _nanoseconds(value)
        elif key.startswith(_XATTR):
            entry.xattrs[key[len(_XATTR) :]] = value
        elif key.startswith(b"GNU.sparse."):
            raise ValueError(f"entry {entry.name!r} is a GNU sparse file, which layers may not hold")


def _nanoseconds(text: bytes) -> int:
    whole, _, fraction = text.partition(b".")
    nanoseconds = int((fraction + b"0" * 9)[:9])
    seconds = int(whole or b"0")
    return seconds * 1_000_000_000 + (-nanoseconds if whole.startswith(b"-") else nanoseconds)


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    """Records "LENGTH KEY=VALUE\\n"; an empty value takes an earlier one back."""
    records: dict[bytes, bytes] = {}
    position = 0
    while position < len(data):
        space = data.index(b" ", position, position + 20)
        end = position + int(data[position:space])
        if end <= space + 1 or end > len(data) or data[end - 1] != 0x0A:
            raise ValueError("pax record with a wrong length")
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if not equals:
            raise ValueError("pax record without '='")
        if value:
            records[key] = value
        position = end
    return records


def _checked_size(header: bytes) -> int:
    stated = _number(header[148:156])
    total = sum(header) - sum(header[148:156]) + 8 * 0x20
    if stated != total:
        raise ValueError("wrong header checksum; the layer is no tar archive, or damaged")
    size = _number(header[124:136])
    if size < 0:
        raise ValueError("negative size")
    return size


def _number(raw: bytes) -> int:
    """Octal text, or GNU base-256 (first bit set) for what octal cannot hold."""
    if raw[0] & 0x80:
        negative = raw[0] == 0xFF
        return int.from_bytes((raw[:1] if negative else bytes([raw[0] & 0x7F])) + raw[1:], "big", signed=negative)
    text = raw.partition(b"\0")[0].strip(b" ")
    if text[:1] in (b"+", b"-") or b"_" in text:
        raise ValueError(f"{text!r} is not an octal number")
    return int(text, 8) if text else 0


def _until_nul(raw: bytes) -> bytes:
    return raw.partition(b"\0")[0]
