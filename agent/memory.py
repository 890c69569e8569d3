"""What the agent remembers of its controller across restarts: `session.json`; and `connection.json` for people."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from . import durable
from .errors import AgentError

log = logging.getLogger("horchestra.session")

UNKNOWN = "unknown"
"""Lineage of a node whose memory was damaged; no controller has it."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Why desired states are not applied. It ends only when an administrator accepts the controller's lineage."""

    lineage: str
    """Of the controller that was met."""
    reason: str
    since: str


@dataclass(frozen=True, slots=True)
class Followed:
    """The last desired state that was applied here."""

    lineage: str = ""
    revision: int = 0
    digest: str = ""
    pause: Pause | None = None

    def paused(self, lineage: str, reason: str) -> Followed:
        return self if self.pause else replace(self, pause=Pause(lineage, reason, timestamp()))


@dataclass(frozen=True, slots=True)
class Connection:
    """Whether the agent is on its own, and since when."""

    connected: bool
    since: str
    reason: str
    pid: int
    endpoint: str
    node: str


def load(path: Path) -> Followed:
    """What was saved. Raises AgentError StateUnreadable when the file is damaged."""
    return _load(path, TypeAdapter(Followed)) or Followed()


def take_up(path: Path) -> Followed:
    """What was saved. A damaged file is set aside and the node is paused: guessing could undo a pause."""
    try:
        return load(path)
    except AgentError as error:
        damaged = path.with_suffix(".damaged")
        path.replace(damaged)
        text = f"what this node follows could not be read any more ({damaged} has what was left of it)"
        log.error("%s: %s: the node is paused until an administrator accepts the controller's lineage", error, text)
        found = Followed(lineage=UNKNOWN, pause=Pause(UNKNOWN, text, timestamp()))
        save(path, found)
        return found


def load_connection(path: Path) -> Connection | None:
    found: Connection | None = _load(path, TypeAdapter(Connection))
    return found


def save(path: Path, state: Followed | Connection) -> None:
    """Durable before it returns."""
    durable.write(path, json.dumps(asdict(state), indent=1).encode())


def timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _load(path: Path, adapter: TypeAdapter[Any]) -> Any:
    try:
        return adapter.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise AgentError(
            "StateUnreadable",
            f"{path} cannot be read ({type(error).__name__})",
        ) from error
