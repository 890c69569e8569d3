"""The node's certificate is read apart from the process that lives for months."""

import subprocess
import sys
from pathlib import Path

import pytest

from agent import certificates
from agent.errors import AgentError
from horchestra.pki.ca import CertificateAuthority


def _joined(directory: Path) -> Path:
    authority = CertificateAuthority.load_or_create(directory / "authority")
    issued = authority.issue_client("sav-01", ["system:nodes"], 30)
    for name, content in (("ca.pem", authority.ca_pem), ("node.pem", issued.certificate), ("node.key", issued.key)):
        (directory / name).write_bytes(content)
    return directory


def test_what_is_read_apart_is_what_parse_reads(tmp_path: Path) -> None:
    directory = _joined(tmp_path)
    found = certificates.load(directory)
    assert found.node == "sav-01"
    assert found == certificates.parse(found.ca, found.certificate, found.key)


@pytest.mark.parametrize("damaged", ["ca.pem", "node.pem"])
def test_a_damaged_certificate_is_explained(tmp_path: Path, damaged: str) -> None:
    directory = _joined(tmp_path)
    (directory / damaged).write_bytes(b"\xff no certificate")
    with pytest.raises(AgentError, match="no usable certificate") as caught:
        certificates.load(directory)
    assert caught.value.reason == "CertificateUnreadable"


def test_the_agent_runs_without_the_library_in_its_memory(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; import agent.__main__, agent.node, agent.session, agent.connection; "
        "from agent import certificates; certificates.load(pathlib.Path(sys.argv[1])); "
        "sys.exit('cryptography' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, _joined(tmp_path)], check=True)
