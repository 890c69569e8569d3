"""Answers registries' WWW-Authenticate challenges: Basic, and Bearer tokens from a token service.

Source: distribution's docs/spec/auth/token.md and RFC 9110 11.6. Registries disagree about the token's field name
(`token`, `access_token`, both) and may leave out `expires_in`, which then is 60 seconds.
"""

import base64
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from agent.errors import AgentError
from agent.images.abort import Abort
from agent.images.credentials import RegistryCredentials
from agent.images.mirrors import URL_CHARACTERS, Endpoint, origin

_DEFAULT_LIFE = 60.0
_SCHEME = re.compile(r"\s*([A-Za-z]+)(?:\s+|$)")
_PARAMETER = re.compile(r'\s*([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+))\s*(?:,|$)')

FetchToken = Callable[[Endpoint, str, str | None, Abort], Any]


@dataclass(frozen=True, slots=True)
class Challenge:
    """One way to sign in: `scheme` in lower case."""

    scheme: str
    parameters: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Granted:
    header: str
    expires: float  # monotonic


class Authorizer:
    """Authorization headers by endpoint and repository; concurrent layers share one token."""

    def __init__(self, credentials: RegistryCredentials, fetch: FetchToken) -> None:
        self._credentials = credentials
        self._fetch = fetch
        self._lock = threading.Lock()
        self._granted: dict[tuple[str, str], _Granted] = {}

    def current(self, endpoint: Endpoint) -> str | None:
        """The header to send now; None before the first challenge and after the token's life."""
        granted = self._granted.get((endpoint.base, endpoint.repository))
        return granted.header if granted and granted.expires > time.monotonic() else None

    def renew(self, endpoint: Endpoint, challenges: Sequence[str], rejected: str | None, abort: Abort) -> bool:
        """Makes `current` answer the challenge; False when there is nothing new to offer. Raises AgentError."""
        with self._lock:
            current = self.current(endpoint)
            if current is not None and current != rejected:
                return True  # another thread was faster
            granted = self._grant(endpoint, challenges, rejected, abort)
            if granted is None:
                return False
            self._granted[endpoint.base, endpoint.repository] = granted
            return True

    def _grant(
        self, endpoint: Endpoint, challenges: Sequence[str], rejected: str | None, abort: Abort
    ) -> _Granted | None:
        offered = {challenge.scheme: challenge for text in challenges for challenge in parse_challenges(text)}
        account = self._credentials.find(endpoint.host, endpoint.repository)
        basic = _basic(account) if account else None
        if "bearer" in offered:
            return self._bearer(endpoint, offered["bearer"].parameters, basic, abort)
        if "basic" in offered and basic and basic != rejected:
            return _Granted(basic, float("inf"))
        return None

    def _bearer(self, endpoint: Endpoint, parameters: dict[str, str], basic: str | None, abort: Abort) -> _Granted:
        realm = quote(parameters.get("realm", ""), safe=URL_CHARACTERS)
        try:
            scheme, host, _ = origin(realm)
        except ValueError:
            scheme = host = ""
        if scheme not in ("http", "https") or not host:
            raise AgentError("RegistryUnavailable", f"names {realm[:200]!r} as token service, which is no URL")
        if scheme == "http" and endpoint.base.startswith("https:"):
            raise AgentError("RegistryTLS", f"wants a password sent in the clear to the token service {host}")
        query = {"service": parameters["service"]} if parameters.get("service") else {}
        query["scope"] = parameters.get("scope") or f"repository:{endpoint.repository}:pull"
        asked = time.monotonic()
        answer = self._fetch(endpoint, f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}", basic, abort)
        token, life = _token_of(answer)
        return _Granted(f"Bearer {token}", asked + life)


def parse_challenges(header: str) -> list[Challenge]:
    """The challenges of one WWW-Authenticate header, which may hold several."""
    challenges: list[Challenge] = []
    position = 0
    while position < len(header):
        if challenges and (parameter := _PARAMETER.match(header, position)):
            quoted, plain = parameter[2], parameter[3]
            value = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            challenges[-1].parameters.setdefault(parameter[1].lower(), value)
            position = parameter.end()
        elif scheme := _SCHEME.match(header, position):
            challenges.append(Challenge(scheme[1].lower(), {}))
            position = scheme.end()
        else:
            break
    return challenges


def _token_of(answer: Any) -> tuple[str, float]:
    if not isinstance(answer, dict):
        raise AgentError("RegistryUnavailable", "its token service sent no JSON object")
    token = answer.get("token") or answer.get("access_token")
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise AgentError("RegistryUnavailable", "its token service sent no token")
    life = answer.get("expires_in")
    valid = isinstance(life, int | float) and not isinstance(life, bool) and life > 0
    return token, float(life) if valid and life is not None else _DEFAULT_LIFE


def _basic(account: tuple[str, str]) -> str:
    return "Basic " + base64.b64encode(":".join(account).encode()).decode()
