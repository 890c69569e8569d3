"""Log lines of an application, from the host's journal through `journalctl -o export`.

The export format is binary-safe and always read by the journalctl that fits the journal's files
(https://systemd.io/JOURNAL_EXPORT_FORMATS). Positions are cursors, so following loses and repeats nothing.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from agent import output
from agent.errors import AgentError
from horchestra.apimachinery.desired import LogRequest

_FIELDS = "MESSAGE,HORCHESTRA_LINE"
_READ = 64 << 10
_STOP_SECONDS = 2.0
_PARTIAL = b"partial"
"""What the log pump marks the pieces of a long line with, but for the last."""
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Entry:
    """One line, or a piece of one. `end`: what belongs behind it, b"" when it goes on. `time`: µs since the epoch."""

    message: bytes
    time: int
    cursor: str
    end: bytes


def matches(uid: str, invocation: str = "") -> list[str]:
    """What to look for: journald vouches for the pump's unit, the pump for the application's uid."""
    chosen = [f"_SYSTEMD_UNIT={output.UNIT}", f"HORCHESTRA_UID={uid}"]
    return [*chosen, f"HORCHESTRA_INVOCATION={invocation}"] if invocation else chosen


class ExportParser:
    """Takes journalctl's output in pieces of any size, gives whole entries."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._fields: dict[bytes, bytes] = {}

    def feed(self, data: bytes) -> list[dict[bytes, bytes]]:
        """The entries completed by `data`: field to value."""
        self._buffer += data
        entries, at = [], 0
        while (end := self._buffer.find(b"\n", at)) >= 0:
            line = bytes(self._buffer[at:end])
            if not line:
                if self._fields:
                    entries.append(self._fields)
                    self._fields = {}
                at = end + 1
                continue
            name, equals, value = line.partition(b"=")
            if equals:
                self._fields[name] = value
                at = end + 1
                continue
            start = end + 9  # a 64-bit length and the value follow, then a newline
            if len(self._buffer) < start:
                break
            size = int.from_bytes(self._buffer[end + 1 : start], "little")
            if len(self._buffer) < start + size + 1:
                break
            self._fields[line] = bytes(self._buffer[start : start + size])
            at = start + size + 1
        del self._buffer[:at]
        return entries


def entry_of(fields: dict[bytes, bytes]) -> Entry | None:
    """An application's line; None for what is not one."""
    if b"MESSAGE" not in fields:
        return None
    return Entry(
        fields[b"MESSAGE"],
        int(fields.get(b"__REALTIME_TIMESTAMP", b"0")),
        fields.get(b"__CURSOR", b"").decode(errors="replace"),
        b"" if fields.get(b"HORCHESTRA_LINE") == _PARTIAL else b"\n",
    )


def arguments(request: LogRequest, chosen: list[str]) -> list[str]:
    """journalctl's, for what is there already. Raises AgentError BadLogRequest."""
    options = ["--output=export", f"--output-fields={_FIELDS}", "--no-pager", "--quiet", "--all"]
    if request.since_seconds is not None:
        options.append(f"--since=@{max(datetime.now(UTC).timestamp() - request.since_seconds, 0):.6f}")
    elif request.since_time is not None:
        options.append(f"--since=@{_timestamp(request.since_time):.6f}")
    return [*options, *chosen]


def _timestamp(text: str) -> float:
    try:
        # RFC 3339 with nanoseconds; datetime takes microseconds.
        value = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
    except ValueError:
        raise AgentError("BadLogRequest", f"sinceTime {text!r} is not RFC 3339, as 2026-01-31T12:00:00Z") from None
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


async def read(request: LogRequest, ended: Callable[[], bool], invocation: str = "") -> AsyncGenerator[bytes, None]:
    """The lines that `request` asks for, in pieces of about 64 KB. `invocation`: only of that process.

    With follow it goes on over restarts and ends when `ended()` says that nothing more will come (a finished job, a
    removed application). Closing the iterator ends the journalctl behind it. Raises AgentError.
    """
    chosen = matches(request.uid, invocation)
    writer = _Writer(request.timestamps, request.limit_bytes)
    cursor = ""
    options = arguments(request, chosen)
    if request.tail_lines != 0:
        first = _entries(options) if request.tail_lines is None else _last_lines(options, request.tail_lines)
        async with contextlib.aclosing(first) as batches:
            async for batch in batches:
                cursor = batch[-1].cursor or cursor
                if data := writer.write(batch):
                    yield data
                if writer.full:
                    return
    if not request.follow:
        if data := writer.finish():
            yield data
        return
    if not cursor:
        cursor = await _last_cursor(chosen) if request.tail_lines == 0 else ""
    position = [f"--after-cursor={cursor}"] if cursor else [o for o in options if o.startswith("--since")]
    follow = ["--follow", "--lines=all", *position, *(o for o in options if not o.startswith("--since"))]
    async with contextlib.aclosing(_entries(follow, ended)) as batches:
        async for batch in batches:
            if data := writer.write(batch):
                yield data
            if writer.full:
                return
    if data := writer.finish():
        yield data


async def _last_lines(options: list[str], lines: int) -> AsyncGenerator[list[Entry], None]:
    """The last `lines` lines as one batch; journalctl would count each piece of a long line."""
    backwards: list[Entry] = []
    found = 0
    async with contextlib.aclosing(_entries(["--reverse", *options])) as batches:
        async for batch in batches:
            for entry in batch:
                found += entry.end == b"\n" or not backwards
                if found > lines:
                    break
                backwards.append(entry)
            if found > lines:
                break
    if backwards:
        yield backwards[::-1]


async def _last_cursor(chosen: list[str]) -> str:
    cursor = ""
    async for batch in _entries(["--output=export", "--quiet", "--no-pager", "--lines=1", *chosen]):
        cursor = batch[-1].cursor
    return cursor


async def _entries(options: list[str], ended: Callable[[], bool] | None = None) -> AsyncGenerator[list[Entry], None]:
    """Batches of entries as journalctl gives them; the process ends with the iterator."""
    process = await asyncio.create_subprocess_exec(
        *("journalctl", *options),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert process.stdout is not None
    parser = ExportParser()
    quiet_rounds = 0
    try:
        while True:
            try:
                async with asyncio.timeout(_POLL_SECONDS if ended else None):
                    data = await process.stdout.read(_READ)
            except TimeoutError:
                # What a process wrote before its end may still be on its way through journald.
                quiet_rounds = quiet_rounds + 1 if ended is not None and ended() else 0
                if quiet_rounds >= 2:
                    return
                continue
            if not data:
                return
            batch = [entry for fields in parser.feed(data) if (entry := entry_of(fields)) is not None]
            if batch:
                yield batch
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            async with asyncio.timeout(_STOP_SECONDS):
                await asyncio.shield(process.wait())


class _Writer:
    """Entries to bytes: timestamps, joined pieces of long lines, the limit."""

    def __init__(self, timestamps: bool, limit: int | None) -> None:
        self._timestamps = timestamps
        self._left = limit
        self._inside = False

    @property
    def full(self) -> bool:
        return self._left is not None and self._left <= 0

    def write(self, entries: list[Entry]) -> bytes:
        parts = []
        for entry in entries:
            if self._timestamps and not self._inside:
                parts.append(_rfc3339_nano(entry.time))
            parts.append(entry.message)
            parts.append(entry.end)
            self._inside = entry.end != b"\n"
        return self._cut(b"".join(parts))

    def finish(self) -> bytes:
        """A newline behind a line that never got its own."""
        if not self._inside:
            return b""
        self._inside = False
        return self._cut(b"\n")

    def _cut(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        data = data[: max(self._left, 0)]
        self._left -= len(data)
        return data


def _rfc3339_nano(microseconds: int) -> bytes:
    moment = datetime.fromtimestamp(microseconds // 1_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{microseconds % 1_000_000:06d}000Z ".encode()
