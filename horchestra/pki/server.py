"""The controller's own certificate: renewed when its names change or two thirds of its life are over."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from . import files
from .ca import CertificateAuthority


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """PEM files for `ssl.SSLContext.load_cert_chain` and for gRPC; `renewed` says whether they were just written."""

    certificate: Path
    key: Path
    ca: Path
    renewed: bool


def host_names(extra: Iterable[str] = ()) -> list[str]:
    """What this controller may be called: loopback, this host, and what the administrator names."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn(), *extra]
    return list(dict.fromkeys(_plain(name) for name in names if name))


def reachable(bound: str) -> str:
    """The address or name that a door is bound to; "" when it is bound to all addresses, which names none."""
    name = _plain(bound)
    return "" if (address := _address(name)) is not None and address.is_unspecified else name


def is_loopback(bound: str) -> bool:
    """Whether a door bound to this address or name is open to its own machine only."""
    address = _address(bound)
    return bound.lower() == "localhost" if address is None else address.is_loopback


def _plain(name: str) -> str:
    """As a certificate spells it: addresses without brackets, zone and leading zeros, names in lower case."""
    address = _address(name.strip("[]"))
    return name.lower() if address is None else str(address).partition("%")[0]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def ensure(
    authority: CertificateAuthority, directory: Path, names: list[str], now: datetime | None = None
) -> ServerFiles:
    """Keep `server.pem` and `server.key` valid for `names`. Raises OSError when they cannot be written."""
    certificate, key = directory / "server.pem", directory / "server.key"
    renew = not key.exists() or not _good(certificate, authority, names, now or datetime.now(UTC))
    if renew:
        issued = authority.issue_server(names)
        # Key and certificate cannot be swapped in one step; with the certificate last, a crash between them leaves a
        # pair that does not match, which the next start sees and replaces.
        files.write(key, issued.key)
        files.write(certificate, issued.certificate, 0o644)
    return ServerFiles(certificate, key, directory / "ca.pem", renew)


def covers(directory: Path, host: str) -> bool:
    """Whether the server certificate names `host`; True when there is none yet."""
    try:
        return _plain(host) in _names(x509.load_pem_x509_certificate((directory / "server.pem").read_bytes()))
    except FileNotFoundError:
        return True


def _good(path: Path, authority: CertificateAuthority, names: list[str], now: datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.ca_pem))
        key = load_pem_private_key((path.parent / "server.key").read_bytes(), None)
    except (OSError, ValueError, TypeError, InvalidSignature):  # damaged or of another CA: the answer is a new one
        return False
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    fresh = start <= now < start + (end - start) * 2 / 3
    return key.public_key() == certificate.public_key() and fresh and set(names) <= _names(certificate)


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = {str(address) for address in extension.get_values_for_type(x509.IPAddress)}
    return addresses | {name.lower() for name in extension.get_values_for_type(x509.DNSName)}
