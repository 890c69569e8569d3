"""The node's certificate as the agent sees it: files, dates, and what to say when a date is near or past.

`cryptography` takes 9 MB of memory and is needed for a moment: it is imported where a certificate is read, and for what
runs for months a process of its own reads it (`python -m agent.certificates`, PEM in, JSON out).
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from .errors import AgentError

_READ_SECONDS = 60.0
REJOIN = "make a new bundle on the controller (manage.py createnodecert) and join again"


@dataclass(frozen=True, slots=True)
class Identity:
    """PEM of authority, certificate and key, and what the certificate says."""

    node: str
    ca: bytes
    certificate: bytes
    key: bytes
    not_before: datetime
    not_after: datetime

    def problem(self, now: datetime) -> AgentError | None:
        """Why the certificate cannot be used at `now`, if it cannot."""
        if now < self.not_before:
            return AgentError(
                "CertificateNotYetValid",
                f"the certificate of {self.node} is valid from {_date(self.not_before)}, this host's clock says "
                f"{_date(now)}: set the clock",
            )
        if now > self.not_after:
            return AgentError(
                "CertificateExpired",
                f"the certificate of {self.node} ended on {_date(self.not_after)}, this host's clock says "
                f"{_date(now)}: check the clock, else {REJOIN}",
            )
        return None

    def expiring(self, now: datetime) -> str | None:
        """A sentence once two thirds of the certificate's life are over."""
        life = self.not_after - self.not_before
        if now < self.not_before + life * 2 / 3:
            return None
        return f"the certificate of {self.node} ends on {_date(self.not_after)}: {REJOIN}"


def parse(ca: bytes, certificate: bytes, key: bytes) -> Identity:
    """Raises ValueError when the PEM cannot be read."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    parsed = x509.load_pem_x509_certificate(certificate)
    x509.load_pem_x509_certificates(ca)
    names = parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise ValueError("the certificate does not have one common name")
    return Identity(str(names[0].value), ca, certificate, key, parsed.not_valid_before_utc, parsed.not_valid_after_utc)


def validity(der: bytes) -> tuple[datetime, datetime]:
    """From when and until when a certificate is valid."""
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(der)
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def server_names(der: bytes) -> set[str]:
    """Host names and addresses of a certificate (subjectAltName)."""
    from cryptography import x509

    try:
        extensions = x509.load_der_x509_certificate(der).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    return addresses | {name.lower() for name in names.get_values_for_type(x509.DNSName)}


def load(directory: Path) -> Identity:
    """From `ca.pem`, `node.pem` and `node.key`. Raises AgentError NotJoined or CertificateUnreadable."""
    try:
        contents = [(directory / name).read_bytes() for name in ("ca.pem", "node.pem", "node.key")]
    except FileNotFoundError as error:
        raise AgentError("NotJoined", f"{error.filename} does not exist: run python -m agent join BUNDLE") from error
    except OSError as error:
        raise AgentError("CertificateUnreadable", f"cannot read {error.filename}: {error.strerror}") from error
    try:
        return _parse_apart(*contents)
    except ValueError as error:
        raise AgentError(
            "CertificateUnreadable", f"{directory} holds no usable certificate ({error}): {REJOIN}"
        ) from error


@lru_cache(maxsize=1)
def _parse_apart(ca: bytes, certificate: bytes, key: bytes) -> Identity:
    """`parse` in a process of its own. Raises ValueError."""
    command = [sys.executable, "-m", "agent.certificates"]
    pem = json.dumps({"ca": ca.decode("latin-1"), "certificate": certificate.decode("latin-1")}).encode()
    try:
        done = subprocess.run(command, input=pem, capture_output=True, timeout=_READ_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"its reader did not work: {error}") from error
    try:
        found = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(said[-1] if said else f"its reader ended with code {done.returncode}") from None
    begins, ends = (datetime.fromisoformat(found[name]) for name in ("not_before", "not_after"))
    return Identity(found["node"], ca, certificate, key, begins, ends)


def _read_apart() -> None:
    """The other side of `_parse_apart`."""
    pem = {name: text.encode("latin-1") for name, text in json.load(sys.stdin).items()}
    try:
        found = parse(pem["ca"], pem["certificate"], b"")
    except ValueError as error:
        sys.exit(str(error))
    dates = {"not_before": found.not_before.isoformat(), "not_after": found.not_after.isoformat()}
    print(json.dumps({"node": found.node, **dates}))


def _date(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


if __name__ == "__main__":
    _read_apart()
