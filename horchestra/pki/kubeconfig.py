"""The administrator's kubeconfig: made once, renewed when its certificate nears its end."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509

from . import files
from .ca import CertificateAuthority
from .server import is_loopback, reachable

ADMIN_DAYS = 365


def ensure_admin(authority: CertificateAuthority, path: Path, server: str) -> None:
    """Write `path` (0600) for user `admin` of group `system:masters` against `server` (an https URL).

    A file whose certificate is good is kept, its server address brought up to date. Raises OSError.
    """
    current = _read(path)
    if current is not None and _fresh(current, authority):
        cluster = current["clusters"][0]["cluster"]
        if cluster["server"] != server:
            cluster["server"] = server
            files.write(path, yaml.safe_dump(current, sort_keys=False).encode())
        return
    issued = authority.issue_client("admin", ["system:masters"], ADMIN_DAYS)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "horchestra",
                "cluster": {"server": server, "certificate-authority-data": _base64(authority.ca_pem)},
            }
        ],
        "users": [
            {
                "name": "admin",
                "user": {
                    "client-certificate-data": _base64(issued.certificate),
                    "client-key-data": _base64(issued.key),
                },
            }
        ],
        "contexts": [{"name": "horchestra", "context": {"cluster": "horchestra", "user": "admin"}}],
        "current-context": "horchestra",
    }
    files.write(path, yaml.safe_dump(config, sort_keys=False).encode())


def server_url(bound: str, port: int, names: Sequence[str] = ()) -> str:
    """Where clients find an API that listens on `bound`: the first of `names`, unless only this machine reaches it;
    else the bound address, which for all addresses is loopback."""
    address = reachable(bound)
    host = names[0] if names and not is_loopback(bound) else address or ("::1" if ":" in bound else "127.0.0.1")
    host = host.strip("[]")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        config = yaml.safe_load(path.read_bytes())
    except (OSError, yaml.YAMLError):
        return None
    return config if isinstance(config, dict) else None


def _fresh(config: dict[str, Any], authority: CertificateAuthority) -> bool:
    try:
        cluster = config["clusters"][0]["cluster"]
        certificate = x509.load_pem_x509_certificate(
            base64.b64decode(config["users"][0]["user"]["client-certificate-data"])
        )
        if base64.b64decode(cluster["certificate-authority-data"]) != authority.ca_pem or "server" not in cluster:
            return False
    except (KeyError, IndexError, TypeError, ValueError):
        return False
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return datetime.now(UTC) < start + (end - start) * 2 / 3
