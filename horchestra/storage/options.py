"""How a write is asked for, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from horchestra.apimachinery.admission import User

FieldValidation = Literal["Strict", "Warn", "Ignore"]
Propagation = Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    user: User
    dry_run: bool = False
    """Validate and admit, store nothing, tell nobody. Within a transaction it makes the whole transaction a dry run."""
    field_validation: FieldValidation = "Strict"
    field_manager: str = ""


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    user: User
    dry_run: bool = False
    grace_period_seconds: int | None = None
    """0 is force: finalizers that the kind lists in `forced()` are not waited for."""
    propagation: Propagation | None = None
    """None: Background, unless the object's finalizers ask for another."""
    uid: str | None = None
    resource_version: str | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of a write. `body` is `obj` encoded; neither may be changed."""

    obj: dict[str, Any]
    body: bytes
    warnings: list[str] = field(default_factory=list)
    changed: bool = True
    gone: bool = False
    """The object no longer exists; `obj` is its last state."""
