"""Who did what, by which credential, from where, with which outcome: one JSON line for every mutation and denial.

Bodies are never part of it, so no secret value can be.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

log = logging.getLogger("horchestra.audit")


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """`verb` and the resource fields are those the authorizer saw; `code` and `reason` are those of the answer."""

    request_id: str
    user: str
    groups: tuple[str, ...]
    credential: str
    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    path: str
    source: str
    code: int
    reason: str
    dry_run: bool
    agent: str
    """What the client calls itself."""


def write(record: AuditRecord) -> None:
    fields = asdict(record)
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    log.info("%s", json.dumps({"time": time, **{k: v for k, v in fields.items() if v not in ("", ())}}))
