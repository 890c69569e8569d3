"""Each step of joining fails with its own name and a way out. The controller is a bare TLS listener."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.config import Mirror, load
from agent.errors import AgentError
from agent.join import Bundle, Places, configured, join
from horchestra.pki.ca import CertificateAuthority, Issued


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.load_or_create(tmp_path / "ca")


@contextmanager
def listening(directory: Path, authority: CertificateAuthority, chain: Issued) -> Iterator[int]:
    """A door that asks for client certificates of the authority; the port."""
    (directory / "chain.pem").write_bytes(chain.certificate + chain.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "chain.pem")
    context.load_verify_locations(cadata=authority.ca_pem.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            with suppress(OSError):
                plain, _ = door.accept()
                with context.wrap_socket(plain, server_side=True) as connection:
                    connection.sendall(b"x")
                    connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield door.getsockname()[1]
        finally:
            with suppress(OSError):
                door.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def bundle(
    directory: Path, authority: CertificateAuthority, endpoint: str, *, node: str = "n1", issued: Issued | None = None
) -> Path:
    issued = issued or authority.issue_client("n1", ["system:nodes"], 30)
    path = directory / "bundle"
    content = {
        "node": node,
        "endpoint": endpoint,
        "ca": authority.ca_pem.decode(),
        "certificate": issued.certificate.decode(),
        "key": issued.key.decode(),
    }
    path.write_text(json.dumps(content))
    return path


def failing(path: Path, tmp_path: Path) -> AgentError:
    with pytest.raises(AgentError) as caught:
        join(path, Places(tmp_path / "etc", tmp_path / "units"), say=lambda _: None)
    assert not (tmp_path / "etc").exists()
    return caught.value


def test_a_good_bundle_is_installed(tmp_path: Path, authority: CertificateAuthority) -> None:
    said: list[str] = []
    with listening(tmp_path, authority, authority.issue_server(["127.0.0.1"])) as port:
        path = bundle(tmp_path, authority, f"127.0.0.1:{port}")
        mirror = Mirror(registry="docker.io", endpoint="http://10.0.0.5:5000")
        join(path, Places(tmp_path / "etc", tmp_path / "units"), [mirror], said.append)
    assert [line.split()[0] for line in said[:5]] == ["DNS", "TCP", "TLS", "clock", "name"]
    config = load(tmp_path / "etc" / "agent.toml")
    assert (config.node, config.endpoint, config.mirror) == ("n1", f"127.0.0.1:{port}", (mirror,))
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "etc" / "pki").iterdir()}
    assert modes == {"ca.pem": 0o600, "node.pem": 0o600, "node.key": 0o600}
    unit = (tmp_path / "units" / "horchestra-agent.service").read_text()
    assert f"-m agent run --config {tmp_path}/etc/agent.toml" in unit
    assert "@" not in unit
    assert (tmp_path / "units" / "multi-user.target.wants" / "horchestra-agent.service").is_symlink()


def joined(tmp_path: Path, authority: CertificateAuthority, node: str, *, rename: bool = False) -> str:
    """The last line of a join that succeeds."""
    said: list[str] = []
    with listening(tmp_path, authority, authority.issue_server(["127.0.0.1"])) as port:
        issued = authority.issue_client(node, ["system:nodes"], 30)
        path = bundle(tmp_path, authority, f"127.0.0.1:{port}", node=node, issued=issued)
        join(path, Places(tmp_path / "etc", tmp_path / "units"), say=said.append, rename=rename)
    return said[-1]


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_last_line_says_how_the_service_takes_it_up(tmp_path: Path, authority: CertificateAuthority) -> None:
    assert joined(tmp_path, authority, "n1").endswith(": systemctl enable --now horchestra-agent")
    assert joined(tmp_path, authority, "n1").endswith(": systemctl restart horchestra-agent")


def test_a_joined_node_takes_another_name_only_when_asked_to(tmp_path: Path, authority: CertificateAuthority) -> None:
    joined(tmp_path, authority, "n1")
    before = contents(tmp_path / "etc")
    other = authority.issue_client("n2", ["system:nodes"], 30)
    path = bundle(tmp_path, authority, "nowhere.invalid:6444", node="n2", issued=other)
    with pytest.raises(AgentError) as caught:
        join(path, Places(tmp_path / "etc", tmp_path / "units"), say=lambda _: None)
    assert caught.value.reason == "AlreadyJoined"
    assert "joined as n1, the bundle is for n2" in caught.value.message
    assert "--rename" in caught.value.message
    assert "orphans" in caught.value.message
    assert contents(tmp_path / "etc") == before
    assert joined(tmp_path, authority, "n2", rename=True).endswith(": systemctl restart horchestra-agent")
    assert load(tmp_path / "etc" / "agent.toml").node == "n2"


def test_settings_written_before_the_first_join_are_no_join(tmp_path: Path, authority: CertificateAuthority) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "agent.toml").write_text("mirror_fallback = true\n")
    assert "enable --now" in joined(tmp_path, authority, "n1")
    assert load(tmp_path / "etc" / "agent.toml").mirror_fallback


def test_a_damaged_configuration_stops_a_join_before_anything_is_written(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "agent.toml").write_text("node = n1\n")
    before = contents(tmp_path / "etc")
    with pytest.raises(AgentError, match="is not TOML"):
        joined(tmp_path, authority, "n1")
    assert contents(tmp_path / "etc") == before


def test_a_name_that_does_not_resolve(tmp_path: Path, authority: CertificateAuthority) -> None:
    error = failing(bundle(tmp_path, authority, "nowhere.invalid:6444"), tmp_path)
    assert error.reason == "DNS"
    assert "nowhere.invalid" in error.message


def test_through_a_pipe_the_steps_that_went_well_come_before_the_error(
    tmp_path: Path, authority: CertificateAuthority
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    path = bundle(tmp_path, authority, f"127.0.0.1:{port}")
    command = [sys.executable, "-m", "agent", "join", str(path), "--config-dir", str(tmp_path / "etc")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30, check=False)
    assert [line.split(maxsplit=1)[0] for line in done.stdout.splitlines()] == ["DNS", "TCP:"]
    assert done.returncode == 1


def test_a_port_that_refuses(tmp_path: Path, authority: CertificateAuthority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    error = failing(bundle(tmp_path, authority, f"127.0.0.1:{port}"), tmp_path)
    assert error.reason == "TCP"
    assert "--agent-bind" in error.message


def test_a_controller_of_another_authority(tmp_path: Path, authority: CertificateAuthority) -> None:
    other = CertificateAuthority.load_or_create(tmp_path / "other")
    with listening(tmp_path, other, other.issue_server(["127.0.0.1"])) as port:
        error = failing(bundle(tmp_path, authority, f"127.0.0.1:{port}"), tmp_path)
    assert error.reason == "TLS"
    assert "another controller" in error.message


def test_a_certificate_that_the_controller_refuses(tmp_path: Path, authority: CertificateAuthority) -> None:
    other = CertificateAuthority.load_or_create(tmp_path / "other")
    with listening(tmp_path, authority, authority.issue_server(["127.0.0.1"])) as port:
        stray = other.issue_client("n1", ["system:nodes"], 30)
        error = failing(bundle(tmp_path, authority, f"127.0.0.1:{port}", issued=stray), tmp_path)
    assert error.reason == "TLS"
    assert "createnodecert" in error.message


def test_something_that_speaks_no_tls(tmp_path: Path, authority: CertificateAuthority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            plain, _ = door.accept()
            plain.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            plain.close()

        thread = threading.Thread(target=serve)
        thread.start()
        error = failing(bundle(tmp_path, authority, f"127.0.0.1:{door.getsockname()[1]}"), tmp_path)
        thread.join(5)
    assert error.reason == "TLS"


def test_a_certificate_whose_time_has_not_come(tmp_path: Path, authority: CertificateAuthority) -> None:
    with listening(tmp_path, authority, authority.issue_server(["127.0.0.1"])) as port:
        begins = datetime.now(UTC) + timedelta(minutes=5)
        issued = authority.issue_client("n1", ["system:nodes"], 30, not_before=begins)
        path = bundle(tmp_path, authority, f"127.0.0.1:{port}", issued=issued)
        # The listener checks dates as well; what the host sees first is its own clock.
        error = failing(path, tmp_path)
    assert error.reason == "clock"
    assert "set the clock" in error.message


def test_a_controller_that_has_another_name(tmp_path: Path, authority: CertificateAuthority) -> None:
    with listening(tmp_path, authority, authority.issue_server(["ctl.example"])) as port:
        error = failing(bundle(tmp_path, authority, f"127.0.0.1:{port}"), tmp_path)
    assert error.reason == "name"
    assert "--server-name 127.0.0.1" in error.message


def test_a_certificate_of_another_node(tmp_path: Path, authority: CertificateAuthority) -> None:
    with listening(tmp_path, authority, authority.issue_server(["127.0.0.1"])) as port:
        error = failing(bundle(tmp_path, authority, f"127.0.0.1:{port}", node="n2"), tmp_path)
    assert error.reason == "name"


@pytest.mark.parametrize("text", ["", "{}", '{"node": 1}', "\x00"])
def test_what_is_no_bundle(tmp_path: Path, text: str) -> None:
    (tmp_path / "bundle").write_text(text)
    assert failing(tmp_path / "bundle", tmp_path).reason == "Bundle"


def test_a_second_join_keeps_what_an_administrator_wrote() -> None:
    made = Bundle(node="n2", endpoint="new:1", ca="", certificate="", key="")
    text = (
        'node = "n1"  # mine\nendpoint = "old:1"\nstate_dir = "/data"\n\n'
        '[[mirror]]\nregistry = "docker.io"\nendpoint = "http://a:5000"\n'
    )
    mirror = Mirror(registry="docker.io", endpoint="http://a:5000")
    result = configured(text, made, [mirror, Mirror(registry="quay.io", endpoint="http://b")])
    assert 'node = "n2"' in result
    assert 'endpoint = "new:1"' in result
    assert 'state_dir = "/data"' in result
    assert result.count("http://a:5000") == 1
    assert result.count("[[mirror]]") == 2
    assert configured(result, made, [mirror]) == result
