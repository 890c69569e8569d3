"""Names of images: `[registry/]repository[:tag][@digest]`, normalised the way Docker users expect.

Grammar: github.com/distribution/reference; the short forms of the hub (`postgres`, `bitnami/redis`) mean docker.io.
"""

import re
from dataclasses import dataclass, replace

from agent.errors import AgentError

HUB = "docker.io"
_HUB_ALIASES = {"index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"}

_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9-]+)*|\[[0-9a-fA-F:]+\]"
_REGISTRY = re.compile(rf"(?:{_HOST})(?::[0-9]{{1,5}})?")
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_NAME_LIMIT = 255


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image by full name. `tag` and `digest` are "" when absent; one at least is set; the digest wins."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> "ImageReference":
        """Reads what a user writes in `image:`. Raises AgentError InvalidImageName."""
        name, at, digest = text.partition("@")
        if at and not is_digest(digest):
            raise _invalid(text, f"{digest!r} is not a digest; write sha256: and 64 hexadecimal digits")
        head, slash, last = name.rpartition("/")
        last, colon, tag = last.partition(":")
        if colon and not _TAG.fullmatch(tag):
            raise _invalid(text, f"{tag!r} is not a tag; use at most 128 letters, digits, '_', '.' and '-'")
        registry, repository = _split_registry(head + slash + last)
        if not _REGISTRY.fullmatch(registry):
            raise _invalid(text, f"{registry!r} is not a registry host")
        if not _REPOSITORY.fullmatch(repository):
            raise _invalid(text, f"{repository!r} is not a repository; use lower-case letters, digits, . _ - /")
        if len(registry) + 1 + len(repository) > _NAME_LIMIT:
            raise _invalid(text[:80] + "…", f"the name is longer than {_NAME_LIMIT} characters")
        return cls(registry, repository, tag or ("" if digest else "latest"), digest)

    def pinned(self, digest: str) -> "ImageReference":
        """The same name held to `digest`, as a rollback writes it."""
        return replace(self, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"


def is_digest(text: str) -> bool:
    """Whether `text` is a digest whose algorithm we verify (sha256, sha512)."""
    return _DIGEST.fullmatch(text) is not None


def _split_registry(name: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first or first != first.lower()):
        registry = first.lower()
    else:
        registry, rest = HUB, name
    if registry in _HUB_ALIASES:
        registry = HUB
    if registry == HUB and "/" not in rest:
        rest = f"library/{rest}"
    return registry, rest


def _invalid(text: str, why: str) -> AgentError:
    return AgentError("InvalidImageName", f"image {text!r}: {why}")
