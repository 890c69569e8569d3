"""Values in unit files: read back as they were, never more than one line, never another directive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import quoting
from agent.errors import AgentError

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=60)
PATHS = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=60).map(lambda s: "/" + s)


def unquoted(word: str, *, escapes: bool) -> str:
    """What systemd's extract_first_word() makes of one quoted word; `escapes`: EXTRACT_CUNESCAPE."""
    assert word[0] == word[-1] == '"'
    out, at, body = [], 0, word[1:-1]
    while at < len(body):
        if body[at] != "\\":
            assert body[at] != '"', "a quote ends the word early"
            out.append(body[at])
            at += 1
        elif escapes and body[at + 1] == "x":
            out.append(chr(int(body[at + 2 : at + 4], 16)))
            at += 4
        else:
            assert body[at + 1] in '\\":'
            out.append(body[at + 1])
            at += 2
    return "".join(out)


def specified(text: str) -> str:
    """Specifier expansion of text that must hold none."""
    assert "%" not in text.replace("%%", "")
    return text.replace("%%", "%")


@given(TEXT)
def test_a_word_is_one_line_and_reads_back(text: str) -> None:
    word = quoting.word(text)
    assert not set(word) & set("\n\r\0")
    assert specified(unquoted(word, escapes=True)) == text


@given(TEXT)
def test_an_argument_has_no_dollar_that_systemd_would_expand(text: str) -> None:
    word = quoting.argument(text)
    assert "$" not in word.replace("$$", "")
    assert specified(unquoted(word, escapes=True)).replace("$$", "$") == text


@given(PATHS)
def test_a_path_word_reads_back_without_c_escapes(path: str) -> None:
    assert specified(unquoted(quoting.path_word(path), escapes=False)) == path


@given(PATHS)
def test_a_file_system_word_is_taken_apart_twice(path: str) -> None:
    once = specified(unquoted(quoting.filesystem_word(path, "size=1,mode=1777"), escapes=False))
    taken, at = [], 0
    while once[at] != ":":
        at += once[at] == "\\"
        taken.append(once[at])
        at += 1
    assert "".join(taken) == path
    assert once[at + 1 :] == "size=1,mode=1777"


@pytest.mark.parametrize("path", ["/a\nExecStartPre=/bin/touch /x", "/a\tb", "/a\x7f", "/\0"])
def test_a_path_with_a_control_character_is_refused(path: str) -> None:
    for write in (quoting.path_word, quoting.path_line, lambda p: quoting.filesystem_word(p, "")):
        with pytest.raises(AgentError):
            write(path)


def test_a_path_line_keeps_what_a_parser_would_eat() -> None:
    assert quoting.path_line("/a ") == "/a /."
    assert quoting.path_line("/a\\") == "/a\\/."
    assert quoting.path_line("/%h") == "/%%h/."


def test_a_line_longer_than_systemd_reads_is_refused() -> None:
    with pytest.raises(AgentError, match="SpecTooLarge"):
        quoting.directive("Environment", "x" * 2_000_000)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/var/lib/horchestra/roots/1", "var-lib-horchestra-roots-1"),
        ("/", "-"),
        ("/a-b/c", r"a\x2db-c"),
        ("/.hidden/x.y", r"\x2ehidden-x.y"),
        ("/é", r"\xc3\xa9"),
    ],
)
def test_a_mount_unit_is_named_as_systemd_escape_does(path: str, name: str) -> None:
    assert quoting.unit_path(path) == name
