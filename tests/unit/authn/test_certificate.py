import ssl
from pathlib import Path

import pytest

from horchestra.apimachinery.errors import StatusError
from horchestra.authn.certificate import identity, read
from horchestra.pki.ca import CertificateAuthority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority.load_or_create(Path(tmp_path_factory.mktemp("pki")))


def der(authority: CertificateAuthority, name: str, groups: list[str]) -> bytes:
    return ssl.PEM_cert_to_DER_cert(authority.issue_client(name, groups, 1).certificate.decode())


def test_cn_is_the_user_and_each_o_a_group(authority: CertificateAuthority) -> None:
    user = identity(der(authority, "alice", ["team", "system:masters"]))
    assert user.name == "alice"
    assert set(user.groups) == {"team", "system:masters", "system:authenticated"}
    assert user.credential.startswith("certificate:")
    assert user.node is None


def test_a_node_is_its_cn(authority: CertificateAuthority) -> None:
    assert identity(der(authority, "n1", ["system:nodes"])).node == "n1"


def test_the_time_of_a_certificate_is_told(authority: CertificateAuthority) -> None:
    found = read(der(authority, "alice", []))
    assert 0 < found.not_after - found.not_before < 2 * 86400


def test_a_certificate_without_a_name_is_nobody(authority: CertificateAuthority) -> None:
    with pytest.raises(StatusError) as caught:
        identity(b"\x30\x00")
    assert caught.value.code == 401
