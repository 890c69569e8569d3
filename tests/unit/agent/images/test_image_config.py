from typing import Any

import pytest

from agent.errors import AgentError
from agent.images.config import ImageConfig


@pytest.mark.parametrize("value", [None, {}, {"Entrypoint": None, "Cmd": None, "Env": None, "ExposedPorts": None}])
def test_null_and_absent_fields_are_empty(value: Any) -> None:
    assert ImageConfig.parse(value) == ImageConfig()


def test_the_usual_fields_are_read() -> None:
    config = ImageConfig.parse(
        {
            "Entrypoint": ["docker-entrypoint.sh"],
            "Cmd": ["postgres"],
            "Env": ["PATH=/usr/bin", "A=b=c"],
            "User": "999:999",
            "WorkingDir": "/data",
            "StopSignal": "SIGINT",
            "ExposedPorts": {"5432/tcp": {}},
            "Volumes": {"/var/lib/postgresql": {}},
            "Labels": {"a": "b"},
        }
    )
    assert config == ImageConfig(
        ("docker-entrypoint.sh",),
        ("postgres",),
        (("PATH", "/usr/bin"), ("A", "b=c")),
        "999:999",
        "/data",
        "SIGINT",
        ("5432/tcp",),
        ("/var/lib/postgresql",),
        (("a", "b"),),
    )


def test_the_last_value_of_a_variable_wins_and_a_bare_name_unsets_it() -> None:
    config = ImageConfig.parse({"Env": ["A=1", "B=2", "A=3", "C", "B", "=x", "D="]})
    assert config.env == (("A", "3"), ("D", ""))


@pytest.mark.parametrize(
    ("entrypoint", "cmd", "command", "args", "argv"),
    [
        (["/e"], ["c"], (), (), ("/e", "c")),
        ([], ["c"], (), (), ("c",)),
        (None, ["c"], (), ("x",), ("x",)),
        (["/e"], ["c"], (), ("x",), ("/e", "x")),
        (["/e"], ["c"], ("/o",), (), ("/o",)),
        (["/e"], ["c"], ("/o",), ("x",), ("/o", "x")),
        ("/bin/run it", None, (), (), ("/bin/run it",)),
        (["/bin/sh", "-c", "echo a b"], None, (), (), ("/bin/sh", "-c", "echo a b")),
    ],
)
def test_command_and_args_override_the_image(
    entrypoint: Any, cmd: Any, command: tuple[str, ...], args: tuple[str, ...], argv: tuple[str, ...]
) -> None:
    assert ImageConfig.parse({"Entrypoint": entrypoint, "Cmd": cmd}).argv(command, args) == argv


@pytest.mark.parametrize("value", [None, {"Entrypoint": [], "Cmd": []}, {"Cmd": [""]}])
def test_an_image_without_a_program_has_no_command(value: Any) -> None:
    with pytest.raises(AgentError, match="NoCommand"):
        ImageConfig.parse(value).argv()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("SIGTERM", "SIGTERM"),
        ("term", "SIGTERM"),
        ("15", "SIGTERM"),
        (3, "SIGQUIT"),
        ("SIGRTMIN+3", "SIGRTMIN+3"),
        ("RTMIN+3", "SIGRTMIN+3"),
        ("37", "SIGRTMIN+3"),
        ("", ""),
        (None, ""),
    ],
)
def test_stop_signals_become_names_that_systemd_knows(value: Any, name: str) -> None:
    assert ImageConfig.parse({"StopSignal": value}).stop_signal == name


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("StopSignal", "SIGTERM\nExecStart=/bin/evil"),
        ("StopSignal", "SIGNOPE"),
        ("StopSignal", "0"),
        ("StopSignal", "SIGRTMIN+99"),
        ("StopSignal", True),
        ("Env", "A=1"),
        ("Env", [1]),
        ("Env", ["A=\0"]),
        ("Cmd", {"a": 1}),
        ("Cmd", [None, 1]),
        ("User", 1),
        ("User", "root\nx"),
        ("User", "a b"),
        ("WorkingDir", ["/"]),
        ("Labels", {"a": 1}),
        ("Volumes", ["/data"]),
    ],
)
def test_a_field_of_the_wrong_shape_is_named(field: str, value: Any) -> None:
    with pytest.raises(AgentError, match=field) as caught:
        ImageConfig.parse({field: value})
    assert caught.value.reason == "InvalidImage"


def test_a_relative_working_directory_starts_at_the_root() -> None:
    assert ImageConfig.parse({"WorkingDir": "app"}).working_dir == "/app"
