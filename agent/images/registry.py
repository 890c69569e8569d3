"""A client of the OCI distribution API (opencontainers/distribution-spec), for pulling only.

Blocking, for use in threads; every wait has a limit and ends when the pull is aborted. Each failure has one reason, and
the message names every endpoint that was asked and what it answered.
"""

import hashlib
import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from agent.errors import AgentError
from agent.images.abort import Abort
from agent.images.authorization import Authorizer
from agent.images.credentials import RegistryCredentials
from agent.images.mirrors import URL_CHARACTERS, Endpoint, RegistryConfig, RegistryMirror, origin
from agent.images.ratelimit import PATIENCE, RegistryGates, rate_limited, retry_after
from agent.images.reference import ImageReference

__all__ = ["Manifest", "RegistryClient", "RegistryConfig", "RegistryCredentials", "RegistryGates", "RegistryMirror"]

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
MANIFEST_LIMIT = 4 << 20
_ERROR_BODY_LIMIT = 64 << 10
_CONNECT_TIMEOUT = 10.0
_READ_TIMEOUT = 30.0
_MAX_REDIRECTS = 10
_MAX_AUTHENTICATIONS = 2
_ATTEMPTS = 4  # for answers that mean "later" and for cuts without progress
_CUT_DELAY = 0.3
_PIECE = 1 << 17
_STALL_SECONDS, _STALL_BYTES = 60.0, 16 << 10  # slower than this is as good as cut
_USER_AGENT = "horchestra-agent"
_REASONS = {401: "ImagePullUnauthorized", 403: "ImagePullForbidden", 404: "ImageNotFound", 429: "RegistryRateLimited"}

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest or index as served; `digest` is computed from `data`."""

    digest: str
    media_type: str
    data: bytes


@dataclass(slots=True)
class _Answer:
    """An open response after redirects; `url` is where it came from."""

    url: str
    response: http.client.HTTPResponse

    @property
    def status(self) -> int:
        return self.response.status

    def header(self, name: str) -> str | None:
        return self.response.headers.get(name)


class RegistryClient:
    """Fetches manifests and blobs with one set of credentials. All clients of a process should share `gates`."""

    def __init__(
        self,
        config: RegistryConfig,
        credentials: RegistryCredentials | None = None,
        gates: RegistryGates | None = None,
    ) -> None:
        self._config = config
        self._gates = gates or RegistryGates()
        self._authorizer = Authorizer(credentials or RegistryCredentials(), self._token)
        self._contexts: dict[object, ssl.SSLContext] = {}

    def manifest(self, reference: ImageReference, abort: Abort) -> Manifest:
        """The manifest `reference` names, checked against its digest if it has one. Raises AgentError."""
        wanted = reference.digest or reference.tag
        accept = {"Accept": ", ".join(MANIFEST_TYPES)}

        def fetch(endpoint: Endpoint, patient: bool) -> Manifest:
            path = f"/manifests/{wanted}"
            with self._get(endpoint, path, accept, abort, patient) as answer:
                data = _read_limited(answer, MANIFEST_LIMIT)
                media_type = (answer.header("Content-Type") or "").partition(";")[0].strip()
            algorithm = reference.digest.partition(":")[0] or "sha256"
            digest = f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"
            if reference.digest and digest != reference.digest:
                raise AgentError("DigestMismatch", f"sent a manifest with digest {digest}")
            return Manifest(digest, media_type, data)

        return self._first_answer(reference, fetch)

    def blob(self, reference: ImageReference, digest: str, size: int, abort: Abort) -> Iterator[bytes]:
        """The `size` bytes of a blob of the reference's repository; goes on where a cut connection or mirror left off.

        The digest is the caller's to check: the bytes are handed on before the last one is known. Raises AgentError.
        """
        endpoints = self._config.endpoints(reference)
        failures: list[tuple[Endpoint, AgentError]] = []
        done = 0
        for endpoint in endpoints:
            try:
                for piece in self._blob_from(endpoint, digest, done, size, abort, patient=endpoint is endpoints[-1]):
                    done += len(piece)
                    yield piece
                return
            except AgentError as error:
                if error.reason == "PullCancelled":
                    raise
                failures.append((endpoint, error))
        raise _combined(f"blob {digest} of {reference}", failures, self._config.mirrored(reference))

    def _blob_from(
        self, endpoint: Endpoint, digest: str, done: int, size: int, abort: Abort, patient: bool
    ) -> Iterator[bytes]:
        cuts = 0
        while True:
            before = done
            try:
                for piece in self._blob_part(endpoint, digest, done, size, abort, patient):
                    done += len(piece)
                    yield piece
                return
            except AgentError as error:
                if error.reason != "RegistryUnreachable":
                    raise
                cuts = cuts + 1 if done == before else 1
                if cuts >= _ATTEMPTS or (done == 0 and not patient):
                    raise
            abort.wait(_CUT_DELAY * 2 ** (cuts - 1))

    def _blob_part(
        self, endpoint: Endpoint, digest: str, start: int, size: int, abort: Abort, patient: bool
    ) -> Iterator[bytes]:
        headers = {"Range": f"bytes={start}-"} if start else {}
        with self._get(endpoint, f"/blobs/{digest}", headers, abort, patient) as answer:
            skip = start if answer.status == 200 else 0  # the server knows no ranges
            if answer.status == 206 and not (answer.header("Content-Range") or "").startswith(f"bytes {start}-"):
                raise AgentError("RegistryUnavailable", "answered another range than asked for")
            left = size - start + skip
            window_start, window_bytes = time.monotonic(), 0
            while left:
                with _failures_named(abort):
                    piece = answer.response.read1(min(_PIECE, left))
                if not piece:
                    raise AgentError("RegistryUnreachable", f"cut the connection {left} bytes before the end")
                left -= len(piece)
                window_bytes += len(piece)
                if (now := time.monotonic()) - window_start > _STALL_SECONDS:
                    if window_bytes < _STALL_BYTES:
                        raise AgentError("RegistryUnreachable", f"sent {window_bytes} bytes in {_STALL_SECONDS:.0f} s")
                    window_start, window_bytes = now, 0
                if skip:
                    dropped = min(skip, len(piece))
                    piece, skip = piece[dropped:], skip - dropped
                if piece:
                    yield piece

    def waiting(self, reference: ImageReference) -> str:
        """Why requests for `reference` wait at this moment, for people; "" when they do not."""
        hosts = (endpoint.host for endpoint in self._config.endpoints(reference))
        waits = ((host, self._gates.remaining(host)) for host in hosts)
        return "; ".join(rate_limited(host, delay).message for host, delay in waits if delay)

    # Endpoints

    def _first_answer(self, reference: ImageReference, fetch: Callable[[Endpoint, bool], Result]) -> Result:
        endpoints = self._config.endpoints(reference)
        failures: list[tuple[Endpoint, AgentError]] = []
        for endpoint in endpoints:
            try:
                return fetch(endpoint, endpoint is endpoints[-1])
            except AgentError as error:
                if error.reason == "PullCancelled":
                    raise
                failures.append((endpoint, error))
        raise _combined(str(reference), failures, self._config.mirrored(reference))

    @contextmanager
    def _get(
        self, endpoint: Endpoint, path: str, headers: dict[str, str], abort: Abort, patient: bool
    ) -> Iterator[_Answer]:
        """An answer with status 200 or 206. A patient caller has no other endpoint to turn to and waits if told to."""
        with ExitStack() as stack:
            for attempt in range(1, _ATTEMPTS + 1):
                stack.close()
                if patient:
                    self._gates.enter(endpoint.host, abort)
                elif delay := self._gates.remaining(endpoint.host):
                    raise rate_limited(endpoint.host, delay)
                answer = self._authorized(stack, endpoint, path, headers, abort)
                if answer.status in (200, 206):
                    self._gates.open(endpoint.host)
                    break
                failure = self._noted(endpoint.host, answer)
                wait = failure.retry_after
                if wait is None or wait > PATIENCE or not patient or attempt == _ATTEMPTS:
                    raise failure
            yield answer

    def _noted(self, host: str, answer: _Answer) -> AgentError:
        """The failure in `answer`; one that may pass closes the gate of the host and says until when."""
        failure = _failure(answer)
        if failure.reason != "RegistryRateLimited" and answer.status < 500:
            return failure
        delay = self._gates.close(host, retry_after(answer.header("Retry-After")))
        message = failure.message
        if failure.reason == "RegistryRateLimited":
            message = f"{message}; {rate_limited(host, delay).message}"
        return AgentError(failure.reason, message, retry_after=delay)

    def _authorized(
        self, stack: ExitStack, endpoint: Endpoint, path: str, headers: dict[str, str], abort: Abort
    ) -> _Answer:
        """The answer to a request with the endpoint's credentials, asked for again when they have run out meanwhile."""
        url = f"{endpoint.base}/v2/{endpoint.repository}{path}"
        for again in range(_MAX_AUTHENTICATIONS + 1):
            authorization = self._authorizer.current(endpoint)
            answer = self._follow(stack, endpoint, url, headers, authorization, abort)
            if answer.status != 401 or origin(answer.url) != endpoint.origin or again == _MAX_AUTHENTICATIONS:
                return answer
            challenges = answer.response.headers.get_all("WWW-Authenticate", [])
            failure = _failure(answer)
            stack.close()
            if not self._authorizer.renew(endpoint, challenges, authorization, abort):
                raise failure
        raise AssertionError("unreachable")

    def _token(self, endpoint: Endpoint, url: str, authorization: str | None, abort: Abort) -> Any:
        """The JSON answer of a token service; `authorization` is sent to the service's own origin only."""
        host = urlsplit(url).netloc.rpartition("@")[2].lower()
        self._gates.enter(host, abort)
        with ExitStack() as stack:
            answer = self._follow(stack, endpoint, url, {"Accept": "application/json"}, authorization, abort)
            if answer.status != 200:
                failure = self._noted(host, answer)
                reason = "ImagePullUnauthorized" if failure.reason == "ImageNotFound" else failure.reason
                raise AgentError(reason, f"token service {host} {failure.message}", retry_after=failure.retry_after)
            data = _read_limited(answer, MANIFEST_LIMIT)
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise AgentError("RegistryUnavailable", f"token service {host} sent no JSON") from error

    # Requests

    def _follow(
        self,
        stack: ExitStack,
        endpoint: Endpoint,
        url: str,
        headers: dict[str, str],
        authorization: str | None,
        abort: Abort,
    ) -> _Answer:
        """GET with redirects. Credentials go to the origin of the first URL only: a redirect leads to storage."""
        home = origin(url)
        for _ in range(_MAX_REDIRECTS + 1):
            own = {"Authorization": authorization} if authorization and origin(url) == home else {}
            response = self._request(stack, endpoint, url, {**headers, **own}, abort)
            if response.status not in (301, 302, 303, 307, 308):
                return _Answer(url, response)
            location = response.headers.get("Location", "")
            stack.close()
            url = _redirect_target(url, location)
        raise AgentError("RegistryUnavailable", f"redirected more than {_MAX_REDIRECTS} times")

    def _request(
        self, stack: ExitStack, endpoint: Endpoint, url: str, headers: dict[str, str], abort: Abort
    ) -> http.client.HTTPResponse:
        """One GET on a connection of its own, which closes with `stack`."""
        scheme, host, port = origin(url)
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        with _failures_named(abort):
            channel = _connect(stack, host, port, abort)
            if scheme == "https":
                channel = self._secured(stack, channel, host, endpoint, abort)
            channel.settimeout(_READ_TIMEOUT)
            connection = http.client.HTTPConnection(parts.netloc.rpartition("@")[2], timeout=_READ_TIMEOUT)
            connection.sock = channel
            stack.callback(connection.close)
            connection.request("GET", target, headers={"User-Agent": _USER_AGENT, **headers})
            response = connection.getresponse()
            stack.callback(response.close)
            return response

    def _secured(
        self, stack: ExitStack, channel: socket.socket, host: str, endpoint: Endpoint, abort: Abort
    ) -> ssl.SSLSocket:
        context = self._contexts.get(endpoint.ca)
        if context is None:
            try:
                context = ssl.create_default_context()
                if endpoint.ca:
                    context.load_verify_locations(endpoint.ca)
            except OSError as error:
                raise AgentError("RegistryTLS", f"CA file {endpoint.ca} cannot be used: {error}") from error
            self._contexts[endpoint.ca] = context
        secured = context.wrap_socket(channel, server_hostname=host, do_handshake_on_connect=False)
        stack.callback(secured.close)
        stack.enter_context(abort.watching(secured))
        secured.do_handshake()
        return secured


def _connect(stack: ExitStack, host: str, port: int, abort: Abort) -> socket.socket:
    failure: OSError = OSError(f"no address for {host}")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:  # UnicodeError: a label longer than DNS allows
        abort.check()
        why = error.strerror if isinstance(error, socket.gaierror) else "it is no host name"
        raise AgentError("RegistryDNS", f"cannot be asked: the name {host[:255]} does not resolve ({why})") from error
    for family, kind, protocol, _, address in addresses:
        channel = socket.socket(family, kind, protocol)
        stack.callback(channel.close)
        stack.enter_context(abort.watching(channel))
        channel.settimeout(_CONNECT_TIMEOUT)
        try:
            channel.connect(address)
        except OSError as error:
            failure = error
            continue
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return channel
    raise failure


@contextmanager
def _failures_named(abort: Abort) -> Iterator[None]:
    """Turns what sockets, TLS and http.client raise into the reasons users see."""
    try:
        yield
    except AgentError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        abort.check()
        match error:
            case ssl.SSLEOFError():
                raise AgentError("RegistryUnreachable", f"closed the connection: {error}") from error
            case ssl.SSLError():
                raise AgentError("RegistryTLS", f"TLS failed: {_tls_words(error)}") from error
            case TimeoutError():
                raise AgentError("RegistryUnreachable", "did not answer in time") from error
            case _:
                raise AgentError(
                    "RegistryUnreachable", f"connection failed: {error or type(error).__name__}"
                ) from error


def _tls_words(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return error.reason or str(error)


def _redirect_target(source: str, location: str) -> str:
    """Absolute URL of a Location header, if it may be followed."""
    try:
        target = quote(urljoin(source, location), safe=URL_CHARACTERS)
        scheme, host, _ = origin(target)
    except ValueError:
        scheme = host = target = ""
    if scheme not in ("http", "https") or not host:
        raise AgentError("RegistryUnavailable", f"redirected to {location[:200]!r}, which is no http or https URL")
    if scheme == "http" and source.startswith("https:"):
        raise AgentError("RegistryTLS", f"redirected from https to plain http at {host}, which is refused")
    return target


def _read_limited(answer: _Answer, limit: int) -> bytes:
    with _failures_named(Abort()):
        data = answer.response.read(limit + 1)
    if len(data) > limit:
        raise AgentError("InvalidManifest", f"sent more than {limit} bytes where a manifest was expected")
    return data


def _failure(answer: _Answer) -> AgentError:
    """The reason for a status that is not success, with the registry's own words."""
    try:
        body = answer.response.read(_ERROR_BODY_LIMIT)
    except (OSError, http.client.HTTPException):
        body = b""
    code, words = _error_of(body)
    status = 429 if code == "TOOMANYREQUESTS" else answer.status  # some send it with another status
    reason = _REASONS.get(status, "RegistryUnavailable")
    text = f"answered {answer.status} {http.client.responses.get(answer.status, '')}".rstrip()
    return AgentError(reason, f"{text} ({words})" if words else text)


def _error_of(body: bytes) -> tuple[str, str]:
    """Code and message of the first error in a body of the form {"errors": [{"code", "message"}]}."""
    try:
        error = json.loads(body)["errors"][0]
        code, message = str(error.get("code", "")), str(error.get("message", ""))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return "", ""
    words = ": ".join(word for word in (code, message) if word)
    return code, "".join(character for character in words if character.isprintable())[:300]


def _combined(what: str, failures: list[tuple[Endpoint, AgentError]], mirrored: bool) -> AgentError:
    """One error for all endpoints: "not found" only when all say so, else what kept the first from answering."""
    telling = next((error for _, error in failures if error.reason != "ImageNotFound"), failures[0][1])
    answers = "; ".join(f"{endpoint.base}/v2/{endpoint.repository} {error.message}" for endpoint, error in failures)
    if telling.reason == "RegistryDNS" and not mirrored:
        answers += "; in a closed network, map this registry to one of your own with [[mirror]] in agent.toml"
    return AgentError(telling.reason, f"cannot pull {what}: {answers}", retry_after=telling.retry_after)
