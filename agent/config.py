"""`agent.toml`: who this node is, whom it talks to, where it keeps things. Unknown keys are refused by name."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from horchestra.apimachinery.names import is_dns1123_subdomain

from .errors import AgentError

DEFAULT_DIRECTORY = Path("/etc/horchestra")
_VARIABLE = re.compile(r"\$\{([^}]*)\}")


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Mirror(Table):
    """Where images of one registry are pulled from instead."""

    registry: str
    """Registry as images name it: docker.io; "*" is all of them."""
    endpoint: str
    """URL that is asked first: http://10.0.0.5:5000."""
    rewrite: tuple[str, str] | None = None
    """Regular expression and replacement (`re.sub`) for the repository, on this mirror only."""
    ca: Path | None = None
    """PEM file with the authority of the endpoint's certificate."""


class Limits(Table):
    """How much the agent does at once."""

    pulls: int = Field(default=3, ge=1, le=32)
    """Images pulled at the same time."""
    layers: int = Field(default=4, ge=1, le=32)
    """Layers of one image fetched and unpacked at the same time."""
    streams: int = Field(default=32, ge=1, le=1000)
    """Log streams served at the same time."""


class Config(Table):
    """The whole file. `directory` is where it was read from; certificates lie in its `pki/`."""

    node: str
    """Name of this node; the certificate's CN."""
    endpoint: str
    """HOST:PORT of the controller's door for agents."""
    state_dir: Path = Path("/var/lib/horchestra")
    """What the agent keeps: layers, roots, volumes, the last desired state."""
    mirror: tuple[Mirror, ...] = ()
    mirror_fallback: bool = False
    """Whether a registry that has mirrors is asked itself when they fail."""
    registry_ca: dict[str, Path] = Field(default_factory=dict)
    """PEM files by registry host, for registries whose certificate a private authority signed."""
    limits: Limits = Limits()
    directory: Path = DEFAULT_DIRECTORY

    @field_validator("node")
    @classmethod
    def _node(cls, value: str) -> str:
        if not is_dns1123_subdomain(value) or len(value) > 63:
            raise ValueError(f"{value!r} cannot name a node")
        return value

    @field_validator("endpoint")
    @classmethod
    def _endpoint(cls, value: str) -> str:
        split_endpoint(value)
        return value

    @property
    def pki(self) -> Path:
        return self.directory / "pki"


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """HOST:PORT or [IPV6]:PORT as (host, port). Raises ValueError."""
    host, colon, port = endpoint.rpartition(":")
    if not colon or not host.strip("[]") or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{endpoint!r} is not HOST:PORT; write it as controller.example:6444")
    return host.strip("[]"), int(port)


def load(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Read `path`, `${NAME}` replaced from the environment.

    Raises AgentError ConfigInvalid that names the file and every bad key, or the variable that is not set.
    """
    document = _document(path)
    if "directory" in document:
        raise AgentError("ConfigInvalid", f"{path}: directory: unknown key")
    document = _expand(document, path, "", environment)
    try:
        return Config.model_validate({**document, "directory": path.parent})
    except ValidationError as error:
        raise AgentError(
            "ConfigInvalid", f"{path}: " + "; ".join(_sentence(dict(e)) for e in error.errors())
        ) from error


def named(path: Path, environment: Mapping[str, str] = os.environ) -> str | None:
    """The node that `path` names, whatever else it holds; None before a node has joined.

    Raises AgentError ConfigInvalid.
    """
    if not os.path.exists(path):
        return None
    node = _expand(_document(path).get("node"), path, "node", environment)
    return str(node) if node else None


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AgentError("ConfigInvalid", f"cannot read {path}: {error.strerror}; join the node first") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AgentError("ConfigInvalid", f"{path} is not TOML: {error}") from error


def _sentence(error: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"])
    words = {"extra_forbidden": "unknown key", "missing": "is required"}
    return f"{where}: {words.get(error['type'], error['msg'])}"


def _expand(value: Any, path: Path, where: str, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {k: _expand(v, path, f"{where}.{k}".lstrip("."), environment) for k, v in value.items()}
    if isinstance(value, list):
        return [_expand(v, path, f"{where}[{i}]", environment) for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replaced(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in environment:
            raise AgentError("ConfigInvalid", f"{path}: {where} names ${{{name}}}, which is not set")
        return environment[name]

    return _VARIABLE.sub(replaced, value)
