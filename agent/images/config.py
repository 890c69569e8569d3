"""What an image says about how to run it, read with Docker's rules from a JSON that nobody checked.

Source: the image-spec's config.md and Docker's handling of null, empty and repeated values.
"""

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.errors import AgentError

_SIGNAL = re.compile(r"(?:SIG)?([A-Z][A-Z0-9]*(?:[+-][0-9]{1,2})?)")
_LAST_SIGNAL = 64


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The `config` object of an image configuration; every absent or null field is empty.

    env: (name, value) pairs, one per name. user: as written, "uid|name[:gid|group]". working_dir: absolute or "".
    stop_signal: a name systemd accepts ("SIGTERM", "SIGRTMIN+3") or "". exposed_ports: "80/tcp". volumes: paths.
    """

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    user: str = ""
    working_dir: str = ""
    stop_signal: str = ""
    exposed_ports: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, value: Any) -> "ImageConfig":
        """Reads the decoded `config` object (or None). Raises AgentError InvalidImage naming the field."""
        raw = _mapping(value, "config")
        working_dir = _text(raw.get("WorkingDir"), "WorkingDir")
        return cls(
            entrypoint=_words(raw.get("Entrypoint"), "Entrypoint"),
            cmd=_words(raw.get("Cmd"), "Cmd"),
            env=_environment(raw.get("Env")),
            user=_user(raw.get("User")),
            working_dir=working_dir if not working_dir or working_dir.startswith("/") else f"/{working_dir}",
            stop_signal=_stop_signal(raw.get("StopSignal")),
            exposed_ports=_keys(raw.get("ExposedPorts"), "ExposedPorts"),
            volumes=_keys(raw.get("Volumes"), "Volumes"),
            labels=tuple(
                (_text(name, "Labels"), _text(text, f"Labels[{name}]"))
                for name, text in _mapping(raw.get("Labels"), "Labels").items()
            ),
        )

    def argv(self, command: tuple[str, ...] = (), args: tuple[str, ...] = ()) -> tuple[str, ...]:
        """What to run: `command` replaces entrypoint and cmd, `args` replace cmd. Raises AgentError NoCommand."""
        words = (*command, *args) if command else (*self.entrypoint, *(args or self.cmd))
        if not words or not words[0]:
            raise AgentError("NoCommand", "the image names no program to run; set spec.command")
        return words


def _words(value: Any, field: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):  # Docker's decoder takes a bare string for a list of one
        return (_text(value, field),) if value else ()
    return tuple(_text(word, field) for word in _list(value, field))


def _environment(value: Any) -> tuple[tuple[str, str], ...]:
    env: dict[str, str] = {}
    for item in _list(value, "Env"):
        name, equals, text = _text(item, "Env").partition("=")
        if not equals:
            env.pop(name, None)  # Docker: a name without a value takes the variable out
        elif name:
            env[name] = text
    return tuple(env.items())


def _user(value: Any) -> str:
    user = _text(value, "User").strip()
    if any(not character.isprintable() or character.isspace() for character in user):
        raise _invalid("User", f"{user!r} holds a space or a control character")
    return user


def _stop_signal(value: Any) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value, "StopSignal")
    if not text:
        return ""
    if text.isascii() and text.isdigit():
        number = int(text[:4])
        if not 1 <= number <= _LAST_SIGNAL:
            raise _invalid("StopSignal", f"{text!r} is not a signal number")
        return signal.Signals(number).name if number in set(signal.Signals) else _realtime(number)
    match = _SIGNAL.fullmatch(text.upper())
    name = f"SIG{match[1]}" if match else ""
    if not name or (name not in signal.Signals.__members__ and not _is_realtime(name)):
        raise _invalid("StopSignal", f"{text!r} is not a signal")
    return name


def _realtime(number: int) -> str:
    return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def _is_realtime(name: str) -> bool:
    match = re.fullmatch(r"SIGRT(MIN\+|MAX-)([0-9]{1,2})", name)
    return match is not None and int(match[2]) <= signal.SIGRTMAX - signal.SIGRTMIN


def _keys(value: Any, field: str) -> tuple[str, ...]:
    return tuple(_text(key, field) for key in _mapping(value, field))


def _text(value: Any, field: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _invalid(field, f"expected a string, found {type(value).__name__}")
    if "\0" in value:
        raise _invalid(field, "holds a NUL character")
    return value


def _list(value: Any, field: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _invalid(field, f"expected a list, found {type(value).__name__}")
    return value


def _mapping(value: Any, field: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _invalid(field, f"expected an object, found {type(value).__name__}")
    return value


def _invalid(field: str, why: str) -> AgentError:
    return AgentError("InvalidImage", f"image configuration field {field}: {why}")
