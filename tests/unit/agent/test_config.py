from pathlib import Path

import pytest

from agent.config import load, split_endpoint
from agent.errors import AgentError

GOOD = 'node = "n1"\nendpoint = "ctl.example:6444"\n'


def config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    return path


def test_defaults_are_filled_and_certificates_lie_beside_the_file(tmp_path: Path) -> None:
    found = load(config(tmp_path, GOOD))
    assert (found.state_dir, found.pki) == (Path("/var/lib/horchestra"), tmp_path / "pki")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (GOOD + 'colour = "red"\n', "colour: unknown key"),
        (GOOD + '[[mirror]]\nregistry = "docker.io"\nendpoint = "http://x"\nport = 1\n', "mirror.0.port: unknown key"),
        (GOOD + "[limits]\npulls = 0\n", "limits.pulls"),
        (GOOD + 'directory = "/x"\n', "directory: unknown key"),
        ('node = "n1"\n', "endpoint: is required"),
        ('node = "N 1"\nendpoint = "a:1"\n', "cannot name a node"),
        ('node = "n1"\nendpoint = "ctl.example"\n', "is not HOST:PORT"),
        ("node = \n", "is not TOML"),
        (GOOD + 'state_dir = "${NOWHERE}/x"\n', "state_dir names ${NOWHERE}, which is not set"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(AgentError) as caught:
        load(config(tmp_path, text), {})
    assert named in caught.value.message
    assert str(tmp_path) in caught.value.message


def test_variables_are_replaced_everywhere(tmp_path: Path) -> None:
    text = GOOD + '[[mirror]]\nregistry = "docker.io"\nendpoint = "http://${MIRROR}:5000"\n'
    found = load(config(tmp_path, text), {"MIRROR": "10.0.0.5"})
    assert found.mirror[0].endpoint == "http://10.0.0.5:5000"


def test_a_missing_file_says_to_join(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="join the node first"):
        load(tmp_path / "agent.toml")


def test_addresses_of_both_kinds_are_split() -> None:
    assert split_endpoint("[::1]:6444") == ("::1", 6444)
    assert split_endpoint("ctl.example:6444") == ("ctl.example", 6444)
