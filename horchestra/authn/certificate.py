"""Who a verified client certificate says its holder is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from horchestra.apimachinery.admission import User
from horchestra.apimachinery.errors import StatusError

AUTHENTICATED = "system:authenticated"
"""Group of every identity that proved itself."""


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """What a certificate says. `not_before` and `not_after` are seconds since the epoch."""

    user: User
    not_before: float
    not_after: float


@lru_cache(maxsize=4096)
def read(der: bytes) -> ClientCertificate:
    """CN is the user, each O a group (as Kubernetes has it).

    The chain was verified by TLS when the connection was made; the time is the caller's to check.
    Raises StatusError Unauthorized when no identity can be read from it.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = [str(a.value) for a in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        groups = [str(a.value) for a in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    except ValueError as error:
        raise StatusError("Unauthorized", "the client certificate cannot be read") from error
    if len(names) != 1 or not names[0]:
        raise StatusError("Unauthorized", "the client certificate must name its holder with exactly one CN")
    fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
    user = User(
        name=names[0],
        groups=tuple(dict.fromkeys((*groups, AUTHENTICATED))),
        credential=f"certificate:{certificate.serial_number:x}",
        extra={"authentication.kubernetes.io/credential-id": (f"X509SHA256={fingerprint}",)},
    )
    return ClientCertificate(
        user, certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    )


def identity(der: bytes) -> User:
    """The user of a certificate that TLS verified. Raises StatusError Unauthorized."""
    return read(der).user
