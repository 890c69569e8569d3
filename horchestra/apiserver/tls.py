"""TLS of the API door: what is offered, and what a connection proves about its client."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any


def server_context(certificate: Path, key: Path, client_ca: Path) -> ssl.SSLContext:
    """A context that asks for client certificates without requiring them.

    TLS 1.3 without tickets: a resumed session would carry an identity whose certificate nobody presented, and TLS 1.2
    has no switch against resumption by session id. HTTP/1.1 only. Certificates are reloaded for new connections by
    calling `load_cert_chain` on the context again.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(client_ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.set_alpn_protocols(["http/1.1"])
    return context


def extension(connection: ssl.SSLObject | None) -> dict[str, Any]:
    """The `tls` extension of the ASGI scope (ASGI TLS extension 0.2), made once per connection.

    Beside the specified keys, `client_cert_der` is the certificate as bytes, or None.
    """
    if connection is None:
        return {"server_cert": None, "client_cert_chain": (), "client_cert_name": None, "client_cert_der": None}
    der = None if connection.session_reused else connection.getpeercert(binary_form=True)
    return {
        "server_cert": None,
        "client_cert_chain": (ssl.DER_cert_to_PEM_cert(der),) if der else (),
        "client_cert_name": None,
        "client_cert_error": None,
        "client_cert_der": der,
    }
