"""Where the images of a registry come from: its mirrors in order, then the registry itself where that is allowed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from agent.errors import AgentError
from agent.images.reference import HUB, ImageReference

_HUB_HOST = "registry-1.docker.io"
ANY_REGISTRY = "*"
URL_CHARACTERS = "%/:?#[]@!$&'()*+,;=~"  # what stays as it is when a URL from a registry is made safe to send


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A place that serves one repository: `base` is a URL without a final "/", `ca` a PEM file trusted in addition."""

    base: str
    repository: str
    ca: Path | None = None

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port: what credentials are bound to."""
        return origin(self.base)

    @property
    def host(self) -> str:
        return urlsplit(self.base).netloc.rpartition("@")[2].lower()


@dataclass(frozen=True, slots=True)
class RegistryMirror:
    """`endpoint` serves what `registry` (a host, or "*" for all) would; `rewrite` (pattern, replacement) changes the
    repository for this mirror only, with Python's `re.sub` rules; `ca` is a PEM file.
    """

    registry: str
    endpoint: str
    rewrite: tuple[str, str] | None = None
    ca: Path | None = None

    def __post_init__(self) -> None:
        """Raises AgentError InvalidMirror: a wrong setting must stop the agent at its start, not a pull at night."""
        try:
            scheme, host, _ = origin(self.endpoint)
        except ValueError:
            scheme = host = ""
        if scheme not in ("http", "https") or not host or any(sign in self.endpoint for sign in "?#@"):
            raise AgentError("InvalidMirror", f"mirror of {self.registry}: {self.endpoint!r} is no http or https URL")
        try:
            if self.rewrite:
                re.sub(self.rewrite[0], self.rewrite[1], "")
        except (re.error, IndexError) as error:
            raise AgentError("InvalidMirror", f"mirror {self.endpoint}: rewrite {self.rewrite}: {error}") from error

    def serves(self, registry: str) -> bool:
        return self.registry in (registry, ANY_REGISTRY)

    def for_repository(self, repository: str) -> Endpoint:
        if self.rewrite:
            repository = re.sub(self.rewrite[0], self.rewrite[1], repository)
        return Endpoint(self.endpoint.rstrip("/"), repository, self.ca)


@dataclass(frozen=True, slots=True)
class RegistryConfig:
    """Mirrors in order of preference. `fallback`: whether a registry that has mirrors is itself asked when they fail;
    a registry without mirrors is always asked. `cas`: PEM file by registry host, for registries with a private CA.
    """

    mirrors: tuple[RegistryMirror, ...] = ()
    fallback: bool = False
    cas: Mapping[str, Path] = field(default_factory=dict)

    def endpoints(self, reference: ImageReference) -> tuple[Endpoint, ...]:
        """All places to ask for `reference`, first choice first. Never empty."""
        mirrors = [mirror for mirror in self.mirrors if mirror.serves(reference.registry)]
        endpoints = [mirror.for_repository(reference.repository) for mirror in mirrors]
        if not mirrors or self.fallback:
            host = _HUB_HOST if reference.registry == HUB else reference.registry
            endpoints.append(Endpoint(f"https://{host}", reference.repository, self.cas.get(reference.registry)))
        return tuple(endpoints)

    def mirrored(self, reference: ImageReference) -> bool:
        """Whether the images of this registry have another place to come from."""
        return any(mirror.serves(reference.registry) for mirror in self.mirrors)


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL. Raises ValueError for a port that is no number."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or (80 if parts.scheme == "http" else 443)
