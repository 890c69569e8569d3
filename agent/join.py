"""`python -m agent join BUNDLE`: look whether the controller can be reached, in the order in which things break, then
install certificate, configuration and service."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from . import certificates, durable
from .certificates import Identity
from .config import Mirror, load, named, split_endpoint
from .errors import AgentError

UNIT = "horchestra-agent.service"
SYSTEMD = "/etc/systemd/system"
TIMEOUT = 5.0
_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME (OpenSSL): the dates are a step of their own."""

Say = Callable[[str], None]


def tell(line: str) -> None:
    """On stdout at once: through a pipe, too, a step that went well comes before the error of the next."""
    print(line, flush=True)


class Bundle(BaseModel):
    """What `manage.py createnodecert` writes; PEM as text."""

    model_config = ConfigDict(extra="ignore")

    node: str
    endpoint: str
    ca: str
    certificate: str
    key: str


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are installed; tests use a directory of their own."""

    config: Path = Path("/etc/horchestra")
    units: Path = Path(SYSTEMD)


def join(path: Path, places: Places, mirrors: Sequence[Mirror] = (), say: Say = tell, *, rename: bool = False) -> None:
    """`rename`: a node that has joined already may take the bundle's name.

    Raises AgentError whose reason is the step that failed and whose message says how to mend it.
    """
    bundle, identity = read(path)
    before = named(places.config / "agent.toml")
    if before and before != bundle.node and not rename:
        raise AgentError(
            "AlreadyJoined", f"this node has joined as {before}, the bundle is for {bundle.node}, and nothing was "
            f"changed: join with a bundle for {before}, or add --rename; the Node {before} then goes Unknown, and its "
            "applications go on here as orphans, which no controller changes or removes"
        )  # fmt: skip
    check(bundle, identity, say)
    install(bundle, places, mirrors)
    service = UNIT.removesuffix(".service")
    if before:
        say(f"joined again as {bundle.node}; the agent takes it up with: systemctl restart {service}")
    else:
        say(f"joined as {bundle.node}; start the agent, now and at boot: systemctl enable --now {service}")


def read(path: Path) -> tuple[Bundle, Identity]:
    try:
        bundle = Bundle.model_validate_json(path.read_bytes())
        identity = certificates.parse(bundle.ca.encode(), bundle.certificate.encode(), bundle.key.encode())
        split_endpoint(bundle.endpoint)
    except OSError as error:
        raise AgentError("Bundle", f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "it"
        raise AgentError("Bundle", f"{path} is not a bundle of createnodecert ({where} is missing or wrong)") from error
    except ValueError as error:
        raise AgentError("Bundle", f"{path} is damaged: {error}; make a new one") from error
    return bundle, identity


def check(bundle: Bundle, identity: Identity, say: Say = tell) -> None:
    """DNS, TCP, TLS, clock and name, in this order. Raises AgentError at the first that fails."""
    host, port = split_endpoint(bundle.endpoint)
    addresses = _resolve(host, port)
    say(f"DNS   ok: {host} is {', '.join(sorted({a[0] for a in addresses}))}")
    with _dial(host, port) as plain:
        say(f"TCP   ok: {plain.getpeername()[0]}:{port} accepts connections")
        server = _handshake(plain, bundle, identity, host)
    say("TLS   ok: the controller and this node's certificate trust each other")
    _check_clock(identity, server)
    say("clock ok: both certificates are valid now")
    _check_name(bundle, identity, server, host)
    say(f"name  ok: {host} is named by the controller's certificate, {bundle.node} by this node's")


def _resolve(host: str, port: int) -> list[tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise AgentError(
            "DNS", f"{host} cannot be resolved ({error.strerror}): mend DNS or /etc/hosts, or make a bundle whose "
            "--endpoint is an address"
        ) from error  # fmt: skip
    return [(str(address[0]), int(address[1])) for *_, address in found]


def _dial(host: str, port: int) -> socket.socket:
    try:
        return socket.create_connection((host, port), timeout=TIMEOUT)
    except TimeoutError as error:
        raise AgentError(
            "TCP", f"{host}:{port} does not answer within {TIMEOUT:.0f} s: a firewall on the way drops packets to it"
        ) from error
    except ConnectionRefusedError as error:
        raise AgentError(
            "TCP",
            f"{host}:{port} refuses connections: is the controller running, and does its --agent-bind say so?",
        ) from error
    except OSError as error:
        raise AgentError("TCP", f"{host}:{port} cannot be reached: {error.strerror}") from error


def _handshake(plain: socket.socket, bundle: Bundle, identity: Identity, host: str) -> bytes:
    """The controller's certificate (DER), whatever its dates and names say."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= _NO_CHECK_TIME
    context.load_verify_locations(cadata=bundle.ca)
    context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory() as directory:  # 0700; ssl reads a key from files only
        for name, content in (("node.pem", bundle.certificate), ("node.key", bundle.key)):
            Path(directory, name).write_text(content)
        try:
            context.load_cert_chain(Path(directory, "node.pem"), Path(directory, "node.key"))
        except ssl.SSLError as error:
            raise AgentError("Bundle", "the key does not belong to the certificate; make a new bundle") from error
    try:
        with context.wrap_socket(plain, server_hostname=host) as connection:
            der = connection.getpeercert(binary_form=True) or b""
            connection.recv(1)  # with TLS 1.3 a refusal of our certificate arrives only here
            return der
    except ssl.SSLCertVerificationError as error:
        raise AgentError(
            "TLS", f"{host} shows a certificate that this bundle's authority has not signed ({error.verify_message}): "
            "it is another controller, or something in between opens TLS"
        ) from error  # fmt: skip
    except ssl.SSLError as error:
        raise _refused(identity, error) from error
    except OSError as error:
        raise AgentError("TLS", f"{host} does not speak TLS as a controller does ({error}): check the port") from error


def _refused(identity: Identity, error: ssl.SSLError) -> AgentError:
    """The controller does not take this node's certificate: because of the clocks, or for good."""
    problem = identity.problem(datetime.now(UTC))
    if problem is not None:
        return AgentError("clock", problem.message)
    if "EXPIRED" in (error.reason or ""):
        words = f"by the controller's clock this node's certificate is not valid now; this host's says {_now()}"
        return AgentError("clock", f"{words}: set the clock that is wrong, else {certificates.REJOIN}")
    return AgentError("TLS", f"the controller refuses this node's certificate ({error.reason}): {certificates.REJOIN}")


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _check_clock(identity: Identity, server: bytes) -> None:
    now = datetime.now(UTC)
    problem = identity.problem(now)
    if problem is not None:
        raise AgentError("clock", problem.message)
    begins, ends = certificates.validity(server)
    if not begins <= now <= ends:
        raise AgentError(
            "clock", f"the controller's certificate is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}, this host's "
            f"clock says {_now()}: set the clock (timedatectl), or restart the controller"
        )  # fmt: skip


def _check_name(bundle: Bundle, identity: Identity, server: bytes, host: str) -> None:
    names = certificates.server_names(server)
    if host.lower() not in names:
        raise AgentError(
            "name", f"the controller's certificate names {', '.join(sorted(names))}, not {host}: start it with "
            f"--server-name {host}, or make a bundle whose --endpoint is one of these"
        )  # fmt: skip
    if identity.node != bundle.node:
        raise AgentError(
            "name", f"the certificate is for {identity.node}, the bundle for {bundle.node}; make a new one"
        )


def install(bundle: Bundle, places: Places, mirrors: Sequence[Mirror] = ()) -> None:
    """Certificate files (0600), agent.toml and the enabled unit. Raises AgentError Install."""
    try:
        pki = places.config / "pki"
        places.config.mkdir(parents=True, exist_ok=True)
        pki.mkdir(mode=0o700, exist_ok=True)
        for name, content in (("node.key", bundle.key), ("node.pem", bundle.certificate), ("ca.pem", bundle.ca)):
            durable.write(pki / name, content.encode())
        toml = places.config / "agent.toml"
        before = toml.read_text() if toml.exists() else _template("agent.toml")
        durable.write(toml, configured(before, bundle, mirrors).encode(), 0o644)
        load(toml)
        _install_unit(places, toml)
    except OSError as error:
        raise AgentError("Install", f"cannot write {error.filename}: {error.strerror}; run it as root") from error


def configured(text: str, bundle: Bundle, mirrors: Sequence[Mirror]) -> str:
    """agent.toml for this bundle: its own keys replaced, mirrors added that are not there; the rest stays. Pure."""
    for key, value in (("node", bundle.node), ("endpoint", bundle.endpoint)):
        line = f"{key} = {json.dumps(value)}"
        top = re.search(r"^\s*\[", text, re.MULTILINE)
        head, tail = (text[: top.start()], text[top.start() :]) if top else (text, "")
        found = re.search(rf"^{key}\s*=.*$", head, re.MULTILINE)
        head = head[: found.start()] + line + head[found.end() :] if found else f"{line}\n{head}"
        text = head + tail
    for mirror in mirrors:
        entry = f"[[mirror]]\nregistry = {json.dumps(mirror.registry)}\nendpoint = {json.dumps(mirror.endpoint)}\n"
        if entry not in text:
            text = f"{text.rstrip()}\n\n{entry}"
    return text


def _install_unit(places: Places, config: Path) -> None:
    source = Path(__file__).resolve().parent.parent
    unit = _template(UNIT)
    for key, value in (("@PYTHON@", sys.executable), ("@CONFIG@", str(config)), ("@SOURCE@", str(source))):
        unit = unit.replace(key, value.replace("%", "%%"))
    places.units.mkdir(parents=True, exist_ok=True)
    durable.write_if_changed(places.units / UNIT, unit.encode(), 0o644)
    wants = places.units / "multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    link = wants / UNIT
    if not link.is_symlink():
        with suppress(FileExistsError):
            link.symlink_to(places.units / UNIT)
    systemctl = shutil.which("systemctl")
    if systemctl and os.path.isdir("/run/systemd/system") and str(places.units) == SYSTEMD:
        subprocess.run([systemctl, "daemon-reload"], check=False, timeout=30)


def _template(name: str) -> str:
    return resources.files("agent").joinpath("templates", name).read_text(encoding="utf-8")
