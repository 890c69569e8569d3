"""journalctl's export format, cut anywhere, and what becomes of it."""

from hypothesis import given
from hypothesis import strategies as st

from agent.journal import Entry, ExportParser, _Writer, entry_of


def exported(entries: list[tuple[bytes, bool]]) -> bytes:
    out = b""
    for message, partial in entries:
        out += b"__CURSOR=c\n__REALTIME_TIMESTAMP=1700000000123456\n"
        out += b"HORCHESTRA_LINE=partial\n" if partial else b""
        out += b"MESSAGE\n" + len(message).to_bytes(8, "little") + message + b"\n\n"
    return out


@given(st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=8), st.integers(1, 50))
def test_entries_survive_any_cut(entries: list[tuple[bytes, bool]], size: int) -> None:
    data, parser, found = exported(entries), ExportParser(), []
    for at in range(0, len(data), size):
        found += parser.feed(data[at : at + size])
    parsed = [entry_of(fields) for fields in found]
    assert [(e.message, e.end == b"") for e in parsed if e] == entries


def test_an_entry_without_a_message_is_no_line() -> None:
    assert entry_of({b"__CURSOR": b"c"}) is None


def test_a_plain_text_field_holds_everything_behind_the_first_equals_sign() -> None:
    [fields] = ExportParser().feed(b"MESSAGE=a=b\n\n")
    assert fields == {b"MESSAGE": b"a=b"}


def test_times_stand_before_lines_not_before_pieces() -> None:
    writer = _Writer(timestamps=True, limit=None)
    pieces = [Entry(b"a", 1_700_000_000_123_456, "", b""), Entry(b"b", 1_700_000_001_000_000, "", b"\n")]
    assert writer.write(pieces) == b"2023-11-14T22:13:20.123456000Z ab\n"


def test_the_limit_cuts_to_the_byte() -> None:
    writer = _Writer(timestamps=False, limit=4)
    assert writer.write([Entry(b"abc", 0, "", b"\n"), Entry(b"def", 0, "", b"\n")]) == b"abc\n"
    assert writer.full


def test_a_line_without_end_gets_one_at_last() -> None:
    writer = _Writer(timestamps=False, limit=None)
    assert writer.write([Entry(b"a", 0, "", b"")]) + writer.finish() + writer.finish() == b"a\n"
