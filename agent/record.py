"""What the node remembers of an application, on its own disk: what runs, what ran before, what failed."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agent import durable
from agent.errors import AgentError
from agent.launch import Launch
from agent.units import Identity
from horchestra.kinds.application import ApplicationSpec

KEPT_IMAGES = 3


@dataclass(frozen=True, slots=True)
class Revision:
    """One version of an application, complete: enough to write its units without controller or registry."""

    generation: int
    spec: dict[str, Any]
    reference: str
    digest: str
    layers: tuple[str, ...]
    """Names below `l/`, top first."""
    launch: Launch
    root: int
    stop_signal: str = ""
    secrets: str = ""
    """Directory of the sealed secrets in the application's own directory."""

    @property
    def parsed(self) -> ApplicationSpec:
        return ApplicationSpec.model_validate(self.spec)


@dataclass(frozen=True, slots=True)
class Rollout:
    """When the present revision took over, on the clock that only this boot knows (CLOCK_BOOTTIME, seconds)."""

    boot: str
    began: float


@dataclass(slots=True)
class Record:
    namespace: str
    name: str
    uid: str
    current: Revision | None = None
    previous: Revision | None = None
    """What to go back to while `current` is not Ready yet."""
    rollout: Rollout | None = None
    failed_generation: int = 0
    failed_message: str = ""
    invocation: str = ""
    """Of the last process seen to run what `written` says."""
    written: dict[str, str] = field(default_factory=dict)
    """Unit file to the sha256 of the text last written."""
    images: list[str] = field(default_factory=list)
    """Digests of the kept revisions, newest first."""
    transitions: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Condition to (status, RFC 3339 time of its last change)."""
    salt: str = ""
    """Of the digests by which a change of secret values is noticed."""

    @property
    def identity(self) -> Identity:
        return Identity(self.namespace, self.name, self.uid)


_ADAPTER = TypeAdapter(Record)
_FILE = "record.json"


def load(directory: Path) -> Record | None:
    """The record in an application's directory; None when there is none. Raises AgentError RecordUnreadable."""
    path = directory / _FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise AgentError("RecordUnreadable", f"{path} cannot be read: {error.strerror}") from error
    try:
        return _ADAPTER.validate_json(data)
    except ValidationError as error:
        raise AgentError("RecordUnreadable", f"{path} cannot be read: {error.error_count()} bad fields") from error


async def save(directory: Path, record: Record) -> None:
    """Durable when it returns; writes nothing when nothing changed."""
    value = _ADAPTER.dump_python(record, mode="json")
    data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    await asyncio.to_thread(_write, directory, data)


def _write(directory: Path, data: bytes) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    durable.write_if_changed(directory / _FILE, data)


def keep_image(record: Record, digest: str) -> None:
    """Note that a revision with this image was started."""
    record.images = [digest, *(known for known in record.images if known != digest)][:KEPT_IMAGES]
