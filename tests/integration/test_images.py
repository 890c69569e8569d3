"""Pulls from a real registry (Debian's docker-registry) and from one that misbehaves on demand."""

import asyncio
import base64
import contextlib
import hashlib
import http.server
import json
import os
import socket
import ssl
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agent.errors import AgentError
from agent.images.abort import Abort
from agent.images.platform import Platform
from agent.images.pull import PullProgress, pull, resolve
from agent.images.reference import ImageReference
from agent.images.registry import RegistryClient, RegistryConfig, RegistryCredentials, RegistryGates, RegistryMirror
from agent.images.store import Image as StoredImage
from agent.images.store import ImageStore
from agent.images.view import ImageView
from tests.lab.oci import (
    LAYER_TYPES,
    Blob,
    Image,
    add_directory,
    add_file,
    add_hardlink,
    add_symlink,
    image,
    index,
    layer,
    layer_from_bytes,
    push,
)
from tests.lab.registry import Registry

AMD64 = Platform("linux", "amd64")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    registry = Registry(tmp_path_factory.mktemp("hub"), "127.0.0.1", free_port())
    registry.start()
    yield registry
    registry.stop()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    store = ImageStore(tmp_path / "store", reserve=1 << 20)
    yield store
    store.close()
    assert not [name for name in os.listdir(tmp_path / "store/l") if name.startswith(".")]
    assert not [thread for thread in threading.enumerate() if thread.name == "layer"]


def client_of(
    *endpoints: str, credentials: RegistryCredentials | None = None, ca: Path | None = None
) -> RegistryClient:
    mirrors = tuple(RegistryMirror("docker.io", endpoint, ca=ca) for endpoint in endpoints)
    return RegistryClient(RegistryConfig(mirrors), credentials)


def name(text: str) -> ImageReference:
    return ImageReference.parse(text)


def small_layer(text: str = "content", compression: Any = "gzip") -> Blob:
    return layer(lambda tar: add_file(tar, "file", text.encode()), compression)


# A registry that works


async def test_an_image_is_pulled_unpacked_and_found_again(hub: Registry, store: ImageStore, tmp_path: Path) -> None:
    base = layer(
        lambda tar: (
            add_directory(tar, "etc", mode=0o711),
            add_file(tar, "etc/passwd", b"root:x:0:0::/root:/bin/sh\n"),
            add_directory(tar, "usr/lib"),
            add_symlink(tar, "lib", "usr/lib"),
            add_file(tar, "gone"),
        )
    )
    top = layer(lambda tar: (add_file(tar, "etc/x", b"x"), add_file(tar, "lib/y"), add_file(tar, ".wh.gone")), "zstd")
    plain = layer(lambda tar: add_hardlink(tar, "hard", "etc/passwd"), "none")
    what = image([base, top, plain], {"Cmd": ["/bin/sh"], "Env": ["A=1"]})
    push(hub.endpoint, "team/app", "1", what)
    seen: list[PullProgress] = []
    client = client_of(f"http://{hub.endpoint}")
    pulled = await pull(name("team/app:1"), client=client, store=store, platform=AMD64, progress=seen.append)
    assert pulled.digest == what.digest
    assert pulled.config.cmd == ("/bin/sh",)
    view = ImageView(pulled.layers)
    assert view.read("/hard", 100).startswith(b"root:")
    assert view.resolve("/lib/y") == "/usr/lib/y"
    assert not view.exists("/gone")
    status = view.stat("/etc")
    assert status is not None
    assert status.st_mode & 0o7777 == 0o711
    total = sum(len(blob.data) for blob in (base, top, plain))
    assert seen[-1] == PullProgress(3, 3, total, total)
    assert ImageStore(tmp_path / "store").image(what.digest) == pulled


async def test_a_pulled_image_mounts_as_an_overlay(hub: Registry, store: ImageStore, tmp_path: Path) -> None:
    def write_base(tar: tarfile.TarFile) -> None:
        for directory in "de":
            add_directory(tar, directory)
            add_file(tar, f"{directory}/old")
        add_file(tar, "gone")

    def write_top(tar: tarfile.TarFile) -> None:
        add_directory(tar, "d")
        for file in ("d/.wh..wh..opq", "d/new", ".wh.gone", "e/new"):
            add_file(tar, file)

    base, top = layer(write_base), layer(write_top)
    push(hub.endpoint, "team/mounted", "1", image([base, top, base]))
    pulled = await pull(name("team/mounted:1"), client=client_of(f"http://{hub.endpoint}"), store=store, platform=AMD64)
    assert len(pulled.layers) == 2
    push(hub.endpoint, "team/mounted", "2", image([base, top]))
    pulled = await pull(name("team/mounted:2"), client=client_of(f"http://{hub.endpoint}"), store=store, platform=AMD64)
    target = tmp_path / "mnt"
    target.mkdir()
    options = "lowerdir=" + ":".join(str(path) for path in pulled.layers)
    mount = await asyncio.create_subprocess_exec(
        "mount", "-t", "overlay", "-o", f"ro,{options}", "overlay", str(target)
    )
    assert await mount.wait() == 0
    try:
        assert sorted(str(path.relative_to(target)) for path in target.rglob("*")) == [
            "d",
            "d/new",
            "e",
            "e/new",
            "e/old",
        ]
    finally:
        unmount = await asyncio.create_subprocess_exec("umount", str(target))
        await unmount.wait()


async def test_a_present_digest_needs_no_network_and_a_present_tag_no_layers(hub: Registry, store: ImageStore) -> None:
    what = image([small_layer("offline")])
    push(hub.endpoint, "team/offline", "1", what)
    await pull(name("team/offline:1"), client=client_of(f"http://{hub.endpoint}"), store=store, platform=AMD64)
    pinned = name("team/offline:1").pinned(what.digest)
    nowhere = client_of(f"http://127.0.0.1:{free_port()}")
    assert (await pull(pinned, client=nowhere, store=store)).reference == pinned
    assert await resolve(pinned, client=nowhere) == what.digest
    assert await resolve(name("team/offline:1"), client=client_of(f"http://{hub.endpoint}")) == what.digest


async def test_images_share_layers_on_the_disk(hub: Registry, store: ImageStore, tmp_path: Path) -> None:
    base = small_layer("shared")
    push(hub.endpoint, "team/one", "1", image([base, small_layer("one")]))
    push(hub.endpoint, "team/two", "1", image([base, small_layer("two")]))
    client = client_of(f"http://{hub.endpoint}")
    one, two = [await pull(name(f"team/{app}:1"), client=client, store=store, platform=AMD64) for app in ("one", "two")]
    assert one.layers[1] == two.layers[1]
    assert len(list((tmp_path / "store/l").iterdir())) == 3
    assert store.remove_unused({two.digest}) == [one.digest]
    assert sorted((tmp_path / "store/l").iterdir()) == sorted(two.layers)


async def test_the_hosts_platform_is_chosen_and_attestations_are_not(hub: Registry, store: ImageStore) -> None:
    wanted = image([small_layer("amd64")])
    arm = image([small_layer("arm64")], architecture="arm64")
    attestation = image([small_layer("proof")], os="unknown", architecture="unknown")
    nested = Image(index([arm, wanted]).manifest, children=(arm, wanted))
    push(hub.endpoint, "team/multi", "flat", index([attestation, arm, wanted]))
    push(hub.endpoint, "team/multi", "nested", index([attestation, nested]))
    push(hub.endpoint, "team/multi", "foreign", index([attestation, arm]))
    push(hub.endpoint, "team/multi", "single-foreign", arm)
    client = client_of(f"http://{hub.endpoint}")
    for tag in ("flat", "nested"):
        pulled = await pull(name(f"team/multi:{tag}"), client=client, store=store, platform=AMD64)
        assert ImageView(pulled.layers).read("/file", 10) == b"amd64"
    for tag in ("foreign", "single-foreign"):
        with pytest.raises(AgentError, match="have linux/arm64") as caught:
            await pull(name(f"team/multi:{tag}"), client=client, store=store, platform=AMD64)
        assert caught.value.reason == "NoMatchingPlatform"


async def test_indexes_nested_too_deep_are_refused(hub: Registry, store: ImageStore) -> None:
    deep = image([small_layer("deep")])
    nested: Image = index([deep])
    for _ in range(4):
        nested = Image(index([nested]).manifest, children=(nested,))
    push(hub.endpoint, "team/deep", "1", nested)
    with pytest.raises(AgentError, match="nested deeper") as caught:
        await pull(name("team/deep:1"), client=client_of(f"http://{hub.endpoint}"), store=store, platform=AMD64)
    assert caught.value.reason == "InvalidManifest"


@pytest.mark.parametrize(("real", "claimed"), [("gzip", "none"), ("none", "gzip"), ("zstd", "gzip"), ("gzip", "zstd")])
async def test_a_wrong_media_type_does_not_matter(hub: Registry, store: ImageStore, real: Any, claimed: Any) -> None:
    true = small_layer(f"{real} {claimed}", real)
    lying = Blob(LAYER_TYPES[claimed], true.data, true.diff_id)
    push(hub.endpoint, "team/lie", f"{real}-{claimed}", image([lying]))
    client = client_of(f"http://{hub.endpoint}")
    pulled = await pull(name(f"team/lie:{real}-{claimed}"), client=client, store=store, platform=AMD64)
    assert ImageView(pulled.layers).read("/file", 100) == f"{real} {claimed}".encode()


async def test_a_layer_that_does_not_unpack_to_its_diff_id_is_refused(hub: Registry, store: ImageStore) -> None:
    good = small_layer("swapped")
    push(hub.endpoint, "team/swapped", "1", image([Blob(good.media_type, good.data, small_layer("other").diff_id)]))
    with pytest.raises(AgentError, match="unpacked layer") as caught:
        await pull(name("team/swapped:1"), client=client_of(f"http://{hub.endpoint}"), store=store, platform=AMD64)
    assert caught.value.reason == "DigestMismatch"


async def test_a_hostile_layer_is_refused_and_leaves_nothing(hub: Registry, store: ImageStore, tmp_path: Path) -> None:
    host = tmp_path / "cron.d"
    host.mkdir()
    root_link = layer(lambda tar: add_symlink(tar, ".", str(tmp_path)))
    push(hub.endpoint, "team/evil", "1", image([root_link, layer(lambda tar: add_file(tar, "cron.d/x"))]))
    push(hub.endpoint, "team/evil", "2", image([layer_from_bytes(b"x" * 5000)]))
    client = client_of(f"http://{hub.endpoint}")
    for tag in ("1", "2"):
        with pytest.raises(AgentError) as caught:
            await pull(name(f"team/evil:{tag}"), client=client, store=store, platform=AMD64)
        assert caught.value.reason == "InvalidImage"
    assert list(host.iterdir()) == []
    assert store.images() == []


async def test_a_missing_image_names_every_endpoint_and_its_answer(hub: Registry, store: ImageStore) -> None:
    closed = free_port()
    client = client_of(f"http://{hub.endpoint}", f"http://127.0.0.1:{closed}")
    with pytest.raises(AgentError) as caught:
        await pull(name("team/none:1"), client=client, store=store)
    assert caught.value.reason == "RegistryUnreachable"
    assert f"http://{hub.endpoint}/v2/team/none answered 404 Not Found" in caught.value.message
    assert f"http://127.0.0.1:{closed}/v2/team/none connection failed" in caught.value.message
    with pytest.raises(AgentError, match="ImageNotFound"):
        await pull(name("team/none:1"), client=client_of(f"http://{hub.endpoint}"), store=store)


async def test_a_second_mirror_serves_when_the_first_cannot(hub: Registry, store: ImageStore) -> None:
    push(hub.endpoint, "hub/library/app", "1", image([small_layer("mirrored")]))
    mirrors = (
        RegistryMirror("docker.io", f"http://127.0.0.1:{free_port()}"),
        RegistryMirror("docker.io", f"http://{hub.endpoint}", rewrite=("^", "hub/")),
    )
    pulled = await pull(name("app:1"), client=RegistryClient(RegistryConfig(mirrors)), store=store, platform=AMD64)
    assert ImageView(pulled.layers).exists("/file")


async def test_a_name_that_does_not_resolve_is_a_dns_failure(store: ImageStore) -> None:
    with pytest.raises(AgentError) as caught:
        await pull(name("registry.invalid/app:1"), client=RegistryClient(RegistryConfig()), store=store)
    assert caught.value.reason == "RegistryDNS"
    words = "https://registry.invalid/v2/app cannot be asked: the name registry.invalid does not resolve ("
    assert words in caught.value.message
    assert caught.value.message.endswith("with [[mirror]] in agent.toml")


async def test_who_has_a_mirror_is_not_told_to_make_one(store: ImageStore) -> None:
    with pytest.raises(AgentError) as caught:
        await pull(name("app:1"), client=client_of("http://mirror.invalid:5000"), store=store)
    assert caught.value.reason == "RegistryDNS"
    assert "the name mirror.invalid does not resolve" in caught.value.message
    assert "[[mirror]]" not in caught.value.message


# A registry that does not


class Faulty:
    """Serves one image; `on` may hold a function that answers a request itself and returns True.

    `requests` records method-less (host, path, headers) of all requests, in order.
    """

    def __init__(self, what: Image, tls: ssl.SSLContext | None = None) -> None:
        self.content = {f"/v2/library/app/manifests/{ref}": what.manifest for ref in ("1", what.digest)}
        self.content |= {f"/v2/library/app/blobs/{blob.digest}": blob for blob in what.blobs}
        self.on: Callable[[Faulty, http.server.BaseHTTPRequestHandler], bool] = lambda faulty, request: False
        self.requests: list[tuple[str, dict[str, str]]] = []
        faulty = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                faulty.requests.append((self.path, {key.lower(): value for key, value in self.headers.items()}))
                with contextlib.suppress(ConnectionError):
                    if not faulty.on(faulty, self):
                        faulty.serve(self)

            def log_message(self, *args: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: object) -> None:  # TLS handshakes that the client breaks off
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def serve(self, request: http.server.BaseHTTPRequestHandler) -> None:
        blob = self.content.get(urlsplit(request.path).path)
        if blob is None:
            answer(request, 404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"no such thing"}]}')
            return
        start = int(request.headers.get("Range", "bytes=0-")[6:].rstrip("-"))
        headers = {"Content-Type": blob.media_type}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(blob.data) - 1}/{len(blob.data)}"
        answer(request, 206 if start else 200, blob.data[start:], headers)

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def answer(
    request: http.server.BaseHTTPRequestHandler, status: int, body: bytes = b"", headers: dict[str, str] | None = None
) -> bool:
    request.send_response(status)
    for key, value in (headers or {}).items():
        request.send_header(key, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
    return True


BIG = layer(lambda tar: add_file(tar, "big", os.urandom(3 << 20)))
APP = image([BIG, small_layer("app")], {"Cmd": ["/app"]})


@pytest.fixture
def serve() -> Iterator[Callable[..., Faulty]]:
    servers: list[Faulty] = []

    def start(on: Any = None, what: Image = APP, tls: ssl.SSLContext | None = None) -> Faulty:
        servers.append(Faulty(what, tls))
        if on:
            servers[-1].on = on
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


async def pull_app(store: ImageStore, client: RegistryClient, **more: Any) -> StoredImage:
    return await pull(name("app:1"), client=client, store=store, platform=AMD64, **more)


async def refusal(store: ImageStore, client: RegistryClient) -> AgentError:
    with pytest.raises(AgentError) as caught:
        await pull_app(store, client)
    return caught.value


TOKEN_ANSWERS = {
    "token": {"token": "T"},
    "access_token": {"access_token": "T"},
    "both": {"token": "T", "access_token": "other"},
    "one second": {"token": "T", "expires_in": 1},
    "null life": {"token": "T", "expires_in": None},
    "no life": {"token": "T", "expires_in": 0},
}


@pytest.mark.parametrize("dialect", TOKEN_ANSWERS)
async def test_every_token_dialect_is_understood(serve: Any, store: ImageStore, dialect: str) -> None:
    asked: list[tuple[dict[str, list[str]], str]] = []

    def on(faulty: Faulty, request: Any) -> bool:
        parts = urlsplit(request.path)
        if parts.path == "/token":
            asked.append((parse_qs(parts.query), request.headers.get("Authorization", "")))
            return answer(request, 200, json.dumps(TOKEN_ANSWERS[dialect]).encode())
        if request.headers.get("Authorization") == "Bearer T":
            return False
        challenge = f'Bearer realm="{faulty.url}/token",service="reg",scope="repository:library/app:pull"'
        return answer(request, 401, b"", {"WWW-Authenticate": challenge})

    server = serve(on)
    account = RegistryCredentials({f"127.0.0.1:{server.port}": ("user", "pass")})
    await pull_app(store, client_of(server.url, credentials=account))
    assert asked[0] == (
        {"service": ["reg"], "scope": ["repository:library/app:pull"]},
        "Basic " + base64.b64encode(b"user:pass").decode(),
    )
    if dialect != "one second":
        assert len(asked) == 1


async def test_a_token_that_ends_in_mid_pull_is_renewed_without_starting_over(serve: Any, store: ImageStore) -> None:
    tokens: list[str] = []
    uses: dict[str, int] = {}

    def on(faulty: Faulty, request: Any) -> bool:
        if request.path.startswith("/token"):
            tokens.append(f"T{len(tokens)}")
            return answer(request, 200, json.dumps({"token": tokens[-1], "expires_in": 300}).encode())
        used = request.headers.get("Authorization", "").removeprefix("Bearer ")
        uses[used] = uses.get(used, 0) + 1
        if not tokens or used != tokens[-1] or uses[used] > 2:
            return answer(request, 401, b"", {"WWW-Authenticate": f'Bearer realm="{faulty.url}/token"'})
        return False

    server = serve(on)
    await pull_app(store, client_of(server.url))
    assert len(tokens) >= 2
    served = [path for path, headers in server.requests if "/blobs/" in path and headers.get("range")]
    assert served == []


async def test_basic_authentication_works_and_a_wrong_password_is_unauthorized(serve: Any, store: ImageStore) -> None:
    right = "Basic " + base64.b64encode(b"user:pass").decode()

    def on(faulty: Faulty, request: Any) -> bool:
        if request.headers.get("Authorization") == right:
            return False
        body = b'{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}'
        return answer(request, 401, body, {"WWW-Authenticate": 'Basic realm="r"'})

    server = serve(on)
    host = f"127.0.0.1:{server.port}"
    for credentials in (None, RegistryCredentials({host: ("user", "wrong")})):
        error = await refusal(store, client_of(server.url, credentials=credentials))
        assert error.reason == "ImagePullUnauthorized"
        assert "authentication required" in error.message
        assert "wrong" not in error.message
    await pull_app(store, client_of(server.url, credentials=RegistryCredentials({host: ("user", "pass")})))


@pytest.mark.parametrize(
    ("status", "reason"),
    [(401, "ImagePullUnauthorized"), (403, "ImagePullForbidden"), (404, "ImageNotFound"), (400, "RegistryUnavailable")],
)
async def test_each_status_has_its_reason(serve: Any, store: ImageStore, status: int, reason: str) -> None:
    server = serve(lambda faulty, request: answer(request, status, b'{"errors":[{"message":"the words\\u001b[31m"}]}'))
    error = await refusal(store, client_of(server.url))
    assert error.reason == reason
    assert f"answered {status}" in error.message
    assert "the words[31m" in error.message
    assert len(server.requests) == 1


async def test_a_token_that_is_refused_again_and_again_ends_the_pull(serve: Any, store: ImageStore) -> None:
    def on(faulty: Faulty, request: Any) -> bool:
        if request.path.startswith("/token"):
            return answer(request, 200, b'{"token": "T"}')
        return answer(request, 401, b"", {"WWW-Authenticate": f'Bearer realm="{faulty.url}/token"'})

    server = serve(on)
    assert (await refusal(store, client_of(server.url))).reason == "ImagePullUnauthorized"
    assert len(server.requests) < 10


# Redirects


async def test_a_redirect_to_storage_carries_no_credentials(serve: Any, store: ImageStore) -> None:
    def strict(faulty: Faulty, request: Any) -> bool:
        return "Authorization" in request.headers and answer(request, 400)

    storage = serve(strict)

    def on(faulty: Faulty, request: Any) -> bool:
        if not request.headers.get("Authorization"):
            return answer(request, 401, b"", {"WWW-Authenticate": "Basic"})
        if "here" not in request.path:  # first relative, then to another port of the same host
            return answer(request, 307, b"", {"Location": f"{request.path}?here"})
        return answer(request, 302, b"", {"Location": f"{storage.url}{request.path}"})

    server = serve(on)
    account = RegistryCredentials({f"127.0.0.1:{server.port}": ("user", "pass")})
    await pull_app(store, client_of(server.url, credentials=account))
    assert all("authorization" not in headers for _, headers in storage.requests)


async def test_endless_redirects_end(serve: Any, store: ImageStore) -> None:
    server = serve(lambda faulty, request: answer(request, 307, b"", {"Location": request.path}))
    error = await refusal(store, client_of(server.url))
    assert "redirected more than 10 times" in error.message
    assert len(server.requests) == 11


@pytest.mark.parametrize("place", ["Location", "realm"])
@pytest.mark.parametrize(
    "location",
    ["", "file:///etc/shadow", "http://", "gopher://x/", "http://[::1", "http://x:p/", "http://a b\u00e4/"],
)
async def test_a_url_that_leads_nowhere_is_refused(serve: Any, store: ImageStore, location: str, place: str) -> None:
    def on(faulty: Faulty, request: Any) -> bool:
        if place == "realm":
            return answer(request, 401, b"", {"WWW-Authenticate": f'Bearer realm="{location}"'})
        return answer(request, 302, b"", {"Location": location})

    error = await refusal(store, client_of(serve(on).url))
    assert error.reason in ("RegistryUnavailable", "RegistryUnreachable", "RegistryDNS")


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1 with its key, in one PEM file."""
    import ipaddress

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "registry")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(built.public_bytes(serialization.Encoding.PEM) + private)
    return path


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def test_a_private_ca_is_trusted_where_it_is_named(
    serve: Any, store: ImageStore, tls: ssl.SSLContext, certificate: Path
) -> None:
    server = serve(tls=tls)
    error = await refusal(store, client_of(server.url))
    assert error.reason == "RegistryTLS"
    assert "its certificate is not accepted: self-signed certificate" in error.message
    await pull_app(store, client_of(server.url, ca=certificate))


async def test_tls_to_a_plain_port_and_a_missing_ca_file_are_tls_failures(serve: Any, store: ImageStore) -> None:
    server = serve()
    assert (await refusal(store, client_of(server.url.replace("http:", "https:")))).reason == "RegistryTLS"
    error = await refusal(store, client_of("https://127.0.0.1:1", ca=Path("/no/such.pem")))
    assert error.reason in ("RegistryTLS", "RegistryUnreachable")


async def test_a_redirect_from_https_to_http_is_refused(
    serve: Any, store: ImageStore, tls: ssl.SSLContext, certificate: Path
) -> None:
    plain = serve()
    server = serve(lambda faulty, request: answer(request, 307, b"", {"Location": plain.url + request.path}), tls=tls)
    error = await refusal(store, client_of(server.url, ca=certificate))
    assert error.reason == "RegistryTLS"
    assert "from https to plain http" in error.message
    assert plain.requests == []


# Rate limits


SLOW_DOWN = b'{"errors":[{"code":"TOOMANYREQUESTS","message":"slow down"}]}'


def limited(times: int, status: int, headers: dict[str, str], body: bytes = b"") -> Any:
    left = iter(range(times))

    def on(faulty: Faulty, request: Any) -> bool:
        return next(left, None) is not None and answer(request, status, body, headers)

    return on


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("told", ["1", "0.7", "date", None])
async def test_a_registry_that_says_later_is_asked_later(
    serve: Any, store: ImageStore, status: int, told: str | None
) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    headers = {} if told is None else {"Retry-After": date if told == "date" else told}
    server = serve(limited(1, status, headers))
    seen: list[PullProgress] = []
    started = time.monotonic()
    await pull_app(store, client_of(server.url), progress=seen.append)
    assert time.monotonic() - started >= 0.7
    assert any("rate-limited until" in progress.waiting for progress in seen)


async def test_a_long_wait_is_reported_with_its_end_and_shared_by_all_pulls(serve: Any, store: ImageStore) -> None:
    server = serve(limited(1, 429, {"Retry-After": "600"}, SLOW_DOWN))
    gates = RegistryGates()
    config = RegistryConfig((RegistryMirror("docker.io", server.url),))
    error = await refusal(store, RegistryClient(config, gates=gates))
    assert error.reason == "RegistryRateLimited"
    assert "TOOMANYREQUESTS: slow down" in error.message
    assert "rate-limited until" in error.message
    assert error.retry_after is not None
    assert error.retry_after > 590
    assert (await refusal(store, RegistryClient(config, gates=gates))).reason == "RegistryRateLimited"
    assert len(server.requests) == 1


async def test_a_limit_in_the_body_alone_counts(serve: Any, store: ImageStore) -> None:
    server = serve(limited(1, 403, {"Retry-After": "900"}, SLOW_DOWN))
    assert (await refusal(store, client_of(server.url))).reason == "RegistryRateLimited"


async def test_a_limited_mirror_is_passed_over_at_once(serve: Any, store: ImageStore) -> None:
    busy, free = serve(limited(99, 429, {"Retry-After": "20"})), serve()
    started = time.monotonic()
    await pull_app(store, client_of(busy.url, free.url))
    assert time.monotonic() - started < 5
    assert len(busy.requests) == 1


# Cut and lying connections


def cut_blobs(every: int, ranges: bool = True) -> Any:
    """Closes blob answers after `every` bytes."""

    def on(faulty: Faulty, request: Any) -> bool:
        blob = faulty.content.get(request.path)
        if blob is None or "/blobs/" not in request.path:
            return False
        start = int(request.headers.get("Range", "bytes=0-")[6:-1]) if ranges else 0
        part = blob.data[start:]
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(blob.data) - 1}/{len(blob.data)}")
        request.send_header("Content-Length", str(len(part)))
        request.end_headers()
        request.wfile.write(part[:every])
        request.close_connection = True
        return True

    return on


async def test_a_cut_blob_goes_on_where_it_was_cut(serve: Any, store: ImageStore) -> None:
    server = serve(cut_blobs(1 << 20))
    await pull_app(store, client_of(server.url))
    ranges = [headers["range"] for path, headers in server.requests if BIG.digest in path and "range" in headers]
    assert ranges == ["bytes=1048576-", "bytes=2097152-", "bytes=3145728-"]


async def test_a_server_without_ranges_is_read_again_from_the_start(serve: Any, store: ImageStore) -> None:
    first = iter([1 << 20])

    def on(faulty: Faulty, request: Any) -> bool:
        return BIG.digest in request.path and bool(cut_blobs(next(first, 1 << 30), ranges=False)(faulty, request))

    server = serve(on)
    await pull_app(store, client_of(server.url))


async def test_a_blob_that_never_comes_ends_the_pull(serve: Any, store: ImageStore) -> None:
    server = serve(cut_blobs(0))
    error = await refusal(store, client_of(server.url))
    assert error.reason == "RegistryUnreachable"
    assert "cut the connection" in error.message


async def test_a_second_mirror_goes_on_where_the_first_was_cut(serve: Any, store: ImageStore) -> None:
    state = {"cut": False}

    def on(faulty: Faulty, request: Any) -> bool:
        if BIG.digest not in request.path:
            return False
        if state["cut"]:
            return answer(request, 404)
        state["cut"] = True
        return bool(cut_blobs(1 << 20)(faulty, request))

    first, second = serve(on), serve()
    await pull_app(store, client_of(first.url, second.url))
    assert [headers["range"] for path, headers in second.requests if BIG.digest in path] == ["bytes=1048576-"]


async def test_changed_bytes_are_a_digest_mismatch(serve: Any, store: ImageStore) -> None:
    def on(faulty: Faulty, request: Any) -> bool:
        if BIG.digest not in request.path:
            return False
        data = bytearray(BIG.data)
        data[1000:1010] = bytes(10)
        return answer(request, 200, bytes(data))

    error = await refusal(store, client_of(serve(on).url))
    assert error.reason == "DigestMismatch"
    assert BIG.digest in error.message


async def test_a_manifest_that_is_not_the_one_asked_for_is_refused(serve: Any, store: ImageStore) -> None:
    other = image([small_layer("other")]).manifest
    server = serve(lambda faulty, request: "/manifests/" in request.path and answer(request, 200, other.data))
    with pytest.raises(AgentError) as caught:
        await pull(name("app:1").pinned(APP.digest), client=client_of(server.url), store=store)
    assert caught.value.reason == "DigestMismatch"


async def test_an_endless_manifest_is_refused(serve: Any, store: ImageStore) -> None:
    def on(faulty: Faulty, request: Any) -> bool:
        request.send_response(200)
        request.end_headers()
        while True:
            request.wfile.write(bytes(1 << 16))

    error = await refusal(store, client_of(serve(on).url))
    assert error.reason == "InvalidManifest"


async def test_a_layer_larger_than_the_disk_is_refused_before_it_is_fetched(serve: Any, store: ImageStore) -> None:
    huge = json.loads(APP.manifest.data)
    huge["layers"][0]["size"] = 1 << 48
    manifest = Blob(APP.manifest.media_type, json.dumps(huge).encode())
    server = serve(what=Image(manifest, APP.blobs))
    error = await refusal(store, client_of(server.url))
    assert error.reason == "DiskFull"
    assert not [path for path, _ in server.requests if BIG.digest in path]


# Sharing and stopping


async def test_two_pulls_of_one_image_share_the_work(serve: Any, store: ImageStore) -> None:
    together = threading.Barrier(2, timeout=20)

    def on(faulty: Faulty, request: Any) -> bool:
        if "/manifests/" in request.path:
            together.wait()
        if BIG.digest in request.path:
            time.sleep(0.5)  # long enough for the other pull to arrive
        return False

    server = serve(on)
    one, two = await asyncio.gather(*(pull_app(store, client_of(server.url)) for _ in range(2)))
    assert one == two
    assert len([path for path, _ in server.requests if BIG.digest in path]) == 1


def stalling(reached: threading.Event, release: threading.Event, after: int = 1 << 20) -> Any:
    def on(faulty: Faulty, request: Any) -> bool:
        if BIG.digest not in request.path or release.is_set():
            return False
        request.send_response(200)
        request.send_header("Content-Length", str(len(BIG.data)))
        request.end_headers()
        request.wfile.write(BIG.data[:after])
        request.wfile.flush()
        reached.set()
        release.wait(30)
        with contextlib.suppress(OSError):
            request.wfile.write(BIG.data[after:])
        return True

    return on


async def test_a_cancelled_pull_stops_at_once_and_leaves_no_tree(serve: Any, store: ImageStore, tmp_path: Path) -> None:
    reached, release = threading.Event(), threading.Event()
    server = serve(stalling(reached, release))
    task = asyncio.create_task(pull_app(store, client_of(server.url)))
    assert await asyncio.to_thread(reached.wait, 10)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 1
    assert not [entry for entry in os.listdir(tmp_path / "store/l") if entry.startswith(".")]
    release.set()
    await pull_app(store, client_of(server.url))


async def test_a_pull_that_is_cancelled_while_the_manifest_stalls_stops_at_once(serve: Any, store: ImageStore) -> None:
    reached, release = threading.Event(), threading.Event()

    def on(faulty: Faulty, request: Any) -> bool:
        reached.set()
        return release.wait(30)

    task = asyncio.create_task(pull_app(store, client_of(serve(on).url)))
    assert await asyncio.to_thread(reached.wait, 10)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 1
    release.set()


async def test_cancelling_one_of_two_pulls_leaves_the_other_running(serve: Any, store: ImageStore) -> None:
    reached, release = threading.Event(), threading.Event()
    server = serve(stalling(reached, release))
    first = asyncio.create_task(pull_app(store, client_of(server.url)))
    assert await asyncio.to_thread(reached.wait, 10)
    joined = asyncio.Event()
    second = asyncio.create_task(pull_app(store, client_of(server.url), progress=lambda progress: joined.set()))
    await asyncio.wait_for(joined.wait(), 10)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    release.set()
    pulled = await second
    assert ImageView(pulled.layers).exists("/big")
    assert len([path for path, _ in server.requests if BIG.digest in path]) == 1


async def test_an_upper_layer_waits_for_the_lower_one_it_leans_on(serve: Any, store: ImageStore) -> None:
    lower = layer(lambda tar: (add_directory(tar, "d", mode=0o700, uid=5), add_file(tar, "d/f", os.urandom(1 << 20))))
    upper = layer(lambda tar: (add_file(tar, "d/new"), add_hardlink(tar, "link", "d/f")))
    what = image([lower, upper])

    def on(faulty: Faulty, request: Any) -> bool:
        if lower.digest in request.path:
            time.sleep(0.5)
        return False

    pulled = await pull_app(store, client_of(serve(on, what).url))
    status = (pulled.layers[0] / "d").stat()
    assert (status.st_mode & 0o7777, status.st_uid) == (0o700, 5)
    assert (
        hashlib.sha256((pulled.layers[0] / "link").read_bytes()).digest()
        == hashlib.sha256((pulled.layers[1] / "d/f").read_bytes()).digest()
    )


async def test_one_failing_layer_stops_the_others(serve: Any, store: ImageStore) -> None:
    reached, release = threading.Event(), threading.Event()
    stall = stalling(reached, release)
    small = APP.blobs[1].digest

    def on(faulty: Faulty, request: Any) -> bool:
        if small in request.path:
            reached.wait(10)
            return answer(request, 403)
        return bool(stall(faulty, request))

    started = time.monotonic()
    error = await refusal(store, client_of(serve(on).url))
    assert error.reason == "ImagePullForbidden"
    assert time.monotonic() - started < 5
    release.set()


def test_an_abort_before_the_request_sends_none(serve: Any) -> None:
    server, abort = serve(), Abort()
    abort.set()
    with pytest.raises(AgentError, match="PullCancelled"):
        client_of(server.url).manifest(name("app:1"), abort)
    assert server.requests == []
