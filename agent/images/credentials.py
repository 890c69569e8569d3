"""Who we are at a registry: user names and passwords as Kubernetes' image pull Secrets hold them."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.errors import AgentError
from agent.images.reference import HUB

_HUB_HOSTS = ("index.docker.io", "registry-1.docker.io", "auth.docker.io")


@dataclass(frozen=True, slots=True)
class RegistryCredentials:
    """(user name, password) by registry: "host[:port]", or "host[:port]/repository/prefix" for a part of one."""

    accounts: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)

    @classmethod
    def from_docker_config(cls, data: bytes) -> "RegistryCredentials":
        """Reads `.dockerconfigjson` of a Secret kubernetes.io/dockerconfigjson. Raises AgentError InvalidPullSecret."""
        try:
            auths = json.loads(data)["auths"]
            return cls({_key(name): _account(entry) for name, entry in auths.items()})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise AgentError(
                "InvalidPullSecret",
                "the image pull secret holds no valid .dockerconfigjson; use kubectl create secret docker-registry",
            ) from None  # the cause could quote the secret

    def merged(self, other: "RegistryCredentials") -> "RegistryCredentials":
        """Both sets; where both name a registry, `self` wins."""
        return RegistryCredentials({**other.accounts, **self.accounts})

    def find(self, host: str, repository: str) -> tuple[str, str] | None:
        """The account for `repository` at `host`: the longest matching prefix, as the kubelet does."""
        name = f"{HUB if host in _HUB_HOSTS else host}/{repository}/"
        matching = [key for key in self.accounts if name.startswith(f"{key}/")]
        return self.accounts[max(matching, key=len)] if matching else None


def _key(name: str) -> str:
    key = name.partition("://")[2] or name
    host, _, path = key.strip("/").partition("/")
    host = HUB if host.lower() in _HUB_HOSTS else host.lower()
    path = "" if path in ("v1", "v2") else path
    return f"{host}/{path}" if path else host


def _account(entry: Any) -> tuple[str, str]:
    if entry.get("auth"):
        try:
            name, colon, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
        except binascii.Error:
            raise ValueError("auth is not base64") from None
        if not colon:
            raise ValueError("auth holds no colon")
        return name, password.rstrip("\0")
    name, password = entry["username"], entry["password"]
    if not isinstance(name, str) or not isinstance(password, str):
        raise TypeError("username and password must be strings")
    return name, password
