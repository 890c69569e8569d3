"""Writes values into unit files so that systemd reads back the same bytes and nothing can become a directive.

Source: systemd.syntax(7), systemd.service(5) "Command lines", and config_parse_bind_paths() and
config_parse_temporary_filesystems() for what each directive does with quotes and backslashes: some undo C escapes, some
know quotes only, some take the rest of the line as it is.
"""

from agent.errors import AgentError

_MAX_LINE = 1_000_000  # LONG_LINE_MAX of systemd is 1 MiB; a longer line makes it drop the whole file


def word(text: str) -> str:
    """A word for directives that undo C escapes (Environment=): any text without NUL."""
    return '"' + "".join(_escape(c) for c in _checked(text)) + '"'


def argument(text: str) -> str:
    """A word of ExecStart= after the program: also `$` stands for itself."""
    return word(text).replace("$", "$$")


def assignment(name: str, value: str) -> str:
    """NAME=VALUE for Environment=."""
    return word(f"{name}={value}")


def path_word(path: str) -> str:
    """A path for directives that know quotes but no C escapes (BindPaths=). Raises AgentError InvalidPath."""
    return '"' + _printable(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def filesystem_word(path: str, options: str) -> str:
    """PATH:OPTIONS for TemporaryFileSystem=, which is taken apart twice."""
    inner = _printable(path).replace("\\", "\\\\").replace(":", "\\:")
    return path_word(f"{inner}:{options}")


def path_line(path: str) -> str:
    """A path that takes the whole line (WorkingDirectory=).

    The final `/.` means the same directory and keeps a trailing space or backslash from being eaten.
    """
    return _printable(path).replace("%", "%%") + "/."


def text_line(text: str) -> str:
    """Free text that takes the whole line (Description=)."""
    return _printable(text).replace("%", "%%").replace("\\", "/")


def unit_path(path: str) -> str:
    """An absolute path as the name of its mount unit, without suffix (systemd-escape --path)."""
    trimmed = path.strip("/") or "/"
    if trimmed == "/":
        return "-"
    return "".join(
        "-" if c == "/" else c if _is_plain(c, first=i == 0) else "".join(f"\\x{b:02x}" for b in c.encode())
        for i, c in enumerate(trimmed)
    )


def directive(name: str, value: str) -> str:
    """One line `NAME=VALUE`. Raises AgentError SpecTooLarge when systemd would refuse its length."""
    line = f"{name}={value}"
    if len(line.encode()) > _MAX_LINE:
        raise AgentError("SpecTooLarge", f"{name} has {len(line.encode())} bytes; systemd takes {_MAX_LINE} in a line")
    return line


def _escape(c: str) -> str:
    if c in '\\"':
        return "\\" + c
    if c == "%":
        return "%%"
    if ord(c) < 32 or ord(c) == 127:
        return f"\\x{ord(c):02x}"
    return c


def _is_plain(c: str, first: bool) -> bool:
    return (c.isascii() and (c.isalnum() or c in ":_")) or (c == "." and not first)


def _checked(text: str) -> str:
    if "\0" in text:
        raise AgentError("InvalidSpec", f"{text[:60]!r} holds a NUL character, which no process can be given")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise AgentError("InvalidSpec", f"{text[:60]!r} holds half of a surrogate pair, which is not text") from None
    return text


def _printable(path: str) -> str:
    if any(ord(c) < 32 or ord(c) == 127 for c in _checked(path)):
        raise AgentError("InvalidPath", f"{path[:120]!r} holds a control character; systemd takes none in a path")
    return path
