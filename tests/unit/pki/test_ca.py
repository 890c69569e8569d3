import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from horchestra.pki import kubeconfig, nodes, server
from horchestra.pki.ca import AuthorityError, CertificateAuthority


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "pki"


@pytest.fixture
def authority(directory: Path) -> CertificateAuthority:
    return CertificateAuthority.load_or_create(directory)


def test_the_authority_is_made_once_and_its_key_is_private(directory: Path) -> None:
    made = CertificateAuthority.load_or_create(directory)
    assert CertificateAuthority.load_or_create(directory).ca_pem == made.ca_pem
    assert stat.S_IMODE((directory / "ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    certificate = x509.load_pem_x509_certificate(made.ca_pem)
    assert certificate.not_valid_after_utc > datetime.now(UTC) + timedelta(days=3650)
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0


@pytest.mark.parametrize("lost", ["ca.key", "ca.pem"])
def test_half_an_authority_is_never_replaced(directory: Path, authority: CertificateAuthority, lost: str) -> None:
    (directory / lost).unlink()
    with pytest.raises(AuthorityError, match="restore"):
        CertificateAuthority.load_or_create(directory)


def test_a_key_of_another_authority_is_refused(
    directory: Path, authority: CertificateAuthority, tmp_path: Path
) -> None:
    CertificateAuthority.load_or_create(tmp_path / "other")
    (directory / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    with pytest.raises(AuthorityError, match="not the key"):
        CertificateAuthority.load_or_create(directory)


def test_nothing_outlives_its_authority(authority: CertificateAuthority) -> None:
    ca = x509.load_pem_x509_certificate(authority.ca_pem)
    assert authority.issue_client("x", [], 10_000).not_after == ca.not_valid_after_utc


def test_a_server_certificate_names_hosts_and_addresses(directory: Path, authority: CertificateAuthority) -> None:
    server.ensure(authority, directory, ["localhost", "127.0.0.1", "::1", "ctl.example"])
    certificate = x509.load_pem_x509_certificate((directory / "server.pem").read_bytes())
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert server.covers(directory, "CTL.example")
    assert server.covers(directory, "127.0.0.1")
    assert not server.covers(directory, "other.example")


def test_a_server_certificate_is_renewed_only_when_it_must_be(directory: Path, authority: CertificateAuthority) -> None:
    names = ["localhost"]
    assert server.ensure(authority, directory, names).renewed
    assert not server.ensure(authority, directory, names).renewed
    assert server.ensure(authority, directory, [*names, "new.example"]).renewed
    assert not server.ensure(authority, directory, names).renewed
    late = datetime.now(UTC) + timedelta(days=250)
    assert server.ensure(authority, directory, names, late).renewed
    (directory / "server.key").write_bytes(b"damaged")
    assert server.ensure(authority, directory, names).renewed
    other = CertificateAuthority.load_or_create(directory.with_name("other"))
    assert server.ensure(other, directory, names).renewed


def test_the_administrators_kubeconfig_is_kept_and_follows_the_address(
    directory: Path, authority: CertificateAuthority, tmp_path: Path
) -> None:
    path = tmp_path / "admin.kubeconfig"
    kubeconfig.ensure_admin(authority, path, "https://127.0.0.1:6443")
    first = yaml.safe_load(path.read_bytes())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kubeconfig.ensure_admin(authority, path, "https://127.0.0.1:7443")
    second = yaml.safe_load(path.read_bytes())
    assert second["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:7443"
    assert second["users"] == first["users"]
    other = CertificateAuthority.load_or_create(directory.with_name("other"))
    kubeconfig.ensure_admin(other, path, "https://127.0.0.1:7443")
    assert yaml.safe_load(path.read_bytes())["users"] != first["users"]


@pytest.mark.parametrize(
    ("bound", "names", "server"),
    [
        ("127.0.0.1", ["10.0.0.1"], "https://127.0.0.1:6443"),
        ("localhost", ["ctl.example"], "https://localhost:6443"),
        ("::1", ["ctl.example"], "https://[::1]:6443"),
        ("0.0.0.0", ["ctl.example", "10.0.0.1"], "https://ctl.example:6443"),
        ("10.0.0.1", ["ctl.example"], "https://ctl.example:6443"),
        ("::", ["fd00::1"], "https://[fd00::1]:6443"),
        ("10.0.0.1", [], "https://10.0.0.1:6443"),
        ("fd00::1", [], "https://[fd00::1]:6443"),
        ("0.0.0.0", [], "https://127.0.0.1:6443"),
        ("::", [], "https://[::1]:6443"),
    ],
)
def test_the_kubeconfig_names_what_clients_can_reach(bound: str, names: list[str], server: str) -> None:
    assert kubeconfig.server_url(bound, 6443, names) == server


def test_a_bound_address_is_spelled_as_the_certificate_has_it(directory: Path, authority: CertificateAuthority) -> None:
    names = server.host_names([server.reachable("FD00:0::1"), "[fd00::2]", "fe80::1%eth0"])
    assert {"fd00::1", "fd00::2", "fe80::1"} <= set(names)
    server.ensure(authority, directory, names)
    assert not server.ensure(authority, directory, names).renewed
    assert server.covers(directory, "fd00:0::1")
    assert [server.reachable(every) for every in ("0.0.0.0", "::", "0::0")] == ["", "", ""]


def test_a_node_is_identified_by_its_certificate(authority: CertificateAuthority) -> None:
    issued = authority.issue_client("sav-01", ["system:nodes"], 365)
    found = nodes.identify(issued.certificate)
    assert (found.node, found.serial) == ("sav-01", f"{issued.serial:x}")


@pytest.mark.parametrize(
    "organizations", [[], ["system:masters"], ["system:nodes", "x"], ["system:nodes", "system:nodes"]]
)
def test_what_is_not_exactly_a_node_is_none(authority: CertificateAuthority, organizations: list[str]) -> None:
    with pytest.raises(nodes.NotANode):
        nodes.identify(authority.issue_client("sav-01", organizations, 1).certificate)


@pytest.mark.parametrize("name", ["", "UPPER", "a_b", "../x", "a b", "x" * 64, "a..b", "-a"])
def test_a_name_that_no_node_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a node"):
        nodes.check_name(name)
