"""Node certificates: issuing them as a bundle, reading them off a connection, and what the table says about them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from cryptography import x509
from cryptography.x509.oid import NameOID
from django.db import close_old_connections, connection

from horchestra.apimachinery.names import is_dns1123_subdomain

from .ca import CertificateAuthority
from .models import IssuedCertificate

NODE_DAYS = 365
NODES = "system:nodes"

T = TypeVar("T")


class NotANode(Exception):
    """The certificate does not prove that its holder is a node; the message says why."""


@dataclass(frozen=True, slots=True)
class NodeCertificate:
    """What a peer proved: it is `node`, by the certificate with this serial (hexadecimal)."""

    node: str
    serial: str
    not_after: datetime


@dataclass(frozen=True, slots=True)
class Record:
    """What this controller's table says of a certificate."""

    machine_id: str
    """Host that first used it; "" while nobody has."""


def check_name(name: str) -> None:
    """Raises ValueError with a message for people."""
    if not is_dns1123_subdomain(name) or len(name) > 63:
        raise ValueError(f"{name!r} cannot name a node; use a-z, 0-9, '-' and '.', at most 63 characters")


def bundle(authority: CertificateAuthority, node: str, endpoint: str, days: float = NODE_DAYS) -> bytes:
    """Issue a certificate for `node` and note it; the JSON that `python -m agent join` installs."""
    check_name(node)
    issued = authority.issue_client(node, [NODES], days)
    IssuedCertificate.objects.create(
        serial=f"{issued.serial:x}", node=node, issued=datetime.now(UTC), expires=issued.not_after
    )
    content = {
        "node": node,
        "endpoint": endpoint,
        "ca": authority.ca_pem.decode(),
        "certificate": issued.certificate.decode(),
        "key": issued.key.decode(),
    }
    return json.dumps(content, indent=1).encode() + b"\n"


def identify(pem: bytes) -> NodeCertificate:
    """The node of a verified peer certificate: one CN, O exactly `system:nodes`. Raises NotANode."""
    certificate = x509.load_pem_x509_certificate(pem)
    names = [str(a.value) for a in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    organizations = [str(a.value) for a in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    if organizations != [NODES]:
        raise NotANode(f"the certificate's organization is {', '.join(organizations) or 'empty'}, not {NODES}")
    if len(names) != 1:
        raise NotANode(f"the certificate has {len(names)} common names, not one")
    try:
        check_name(names[0])
    except ValueError as error:
        raise NotANode(str(error)) from error
    return NodeCertificate(names[0], f"{certificate.serial_number:x}", certificate.not_valid_after_utc)


def lookup(certificate: NodeCertificate) -> Record | None:
    """None when this controller's table does not know the certificate. Blocks on the database."""
    row = _query(lambda: IssuedCertificate.objects.filter(serial=certificate.serial, node=certificate.node).first())
    return None if row is None else Record(row.machine_id)


def bind(certificate: NodeCertificate, machine_id: str) -> None:
    """Note the machine that uses a certificate first; later machines do not replace it. Blocks on the database."""
    _query(
        lambda: IssuedCertificate.objects.filter(serial=certificate.serial, machine_id="").update(machine_id=machine_id)
    )


def _query(query: Callable[[], T]) -> T:
    """Runs in a worker thread, whose connection nobody else would close."""
    try:
        return query()
    finally:
        close_old_connections()
        if not connection.in_atomic_block:
            connection.close()
