"""The certificate authority of one controller: it signs the server, the administrators and the nodes."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from . import files

CA_DAYS = 3652
SERVER_DAYS = 365
BACKDATE = timedelta(minutes=10)
"""A certificate is valid from a little earlier on: clocks of nodes and users differ."""


class AuthorityError(Exception):
    """The CA files on disk cannot be used; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, PEM both."""

    certificate: bytes
    key: bytes
    serial: int
    not_before: datetime
    not_after: datetime


class CertificateAuthority:
    """An EC P-256 key and its self-signed certificate, `ca.key` (0600) and `ca.pem` in one directory."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def load_or_create(cls, directory: Path) -> Self:
        """Raises AuthorityError when the files are damaged or only one of them is there; never replaces a CA."""
        certificate_file, key_file = directory / "ca.pem", directory / "ca.key"
        if not certificate_file.exists() and not key_file.exists():
            return cls._create(directory)
        try:
            certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
            key = load_pem_private_key(key_file.read_bytes(), None)
        except (OSError, ValueError) as error:
            raise AuthorityError(
                f"{directory} does not hold a usable certificate authority ({error}); restore ca.pem and ca.key from a "
                "backup: a new authority would make every node and user join again"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise AuthorityError(f"{key_file} is not the key of {certificate_file}; restore both from one backup")
        return cls(certificate, key)

    @classmethod
    def _create(cls, directory: Path) -> Self:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "horchestra-ca")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATE)
            .not_valid_after(now + timedelta(days=CA_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(sign_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        # The key first: a certificate alone could be handed out before anything can be signed with it.
        files.write(directory / "ca.key", _key_pem(key))
        files.write(directory / "ca.pem", certificate.public_bytes(Encoding.PEM), 0o644)
        return cls(certificate, key)

    @property
    def ca_pem(self) -> bytes:
        return self._certificate.public_bytes(Encoding.PEM)

    def issue_server(self, names: Sequence[str], days: float = SERVER_DAYS) -> Issued:
        """A server certificate for host names and addresses; the first is also its CN."""
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        return self._issue(names[0], (), days, ExtendedKeyUsageOID.SERVER_AUTH, [alternatives])

    def issue_client(
        self, cn: str, organizations: Iterable[str], days: float, *, not_before: datetime | None = None
    ) -> Issued:
        """A client certificate: CN is the user or node, each O a group (RFC 5280 names, as Kubernetes reads them)."""
        return self._issue(cn, tuple(organizations), days, ExtendedKeyUsageOID.CLIENT_AUTH, [], not_before)

    def _issue(
        self,
        cn: str,
        organizations: tuple[str, ...],
        days: float,
        usage: x509.ObjectIdentifier,
        extensions: Sequence[x509.ExtensionType],
        not_before: datetime | None = None,
    ) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        start = not_before or datetime.now(UTC) - BACKDATE
        end = min((not_before or datetime.now(UTC)) + timedelta(days=days), self._certificate.not_valid_after_utc)
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, o) for o in organizations]
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, cn[:64])]))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Issued(
            certificate.public_bytes(Encoding.PEM),
            _key_pem(key),
            certificate.serial_number,
            certificate.not_valid_before_utc,
            certificate.not_valid_after_utc,
        )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _key_usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )
