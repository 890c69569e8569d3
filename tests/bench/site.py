"""A whole site for the benches that need one: registry, controller and a systemd node with the agent on it."""

from __future__ import annotations

import base64
import json
import os
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.bench.https import Connection, request
from tests.lab.agent_runtime import agent_runtime
from tests.lab.command import run
from tests.lab.estate import Estate
from tests.lab.images.catalogue import build
from tests.lab.images.layout import load
from tests.lab.network import LabNetwork
from tests.lab.node import Node
from tests.lab.nodes import Nodes
from tests.lab.oci import push
from tests.lab.paths import PROJECT, VENV
from tests.lab.registry import Registry
from tests.lab.rootfs import node_base
from tests.lab.server import Server

NODE = "sav-01"
_REPOSITORY, _TAG = "lab/no-user", "1"
IMAGE = f"{_REPOSITORY}:{_TAG}"
APPLICATIONS = "/apis/orch.ks-tool.dev/v1/namespaces/default/applications"


@dataclass(frozen=True, slots=True)
class Site:
    """`port` and `client` lead to the API."""

    node: Node
    port: int
    client: ssl.SSLContext

    def connect(self) -> Connection:
        return Connection(self.port, self.client)


@contextmanager
def site() -> Iterator[Site]:
    """Up while the context is open; moves this process into the site's network namespace, for good."""
    network = LabNetwork(Estate.fresh())
    directory = network.estate.directory
    try:
        what = load(build(IMAGE))
        for fetch in (node_base, agent_runtime):  # while there is a network
            fetch()
        network.up()
        network.enter()
        registry = Registry(directory / "registry", network.address)
        registry.start()
        push(registry.endpoint, _REPOSITORY, _TAG, what)
        addresses = _controller(directory, network.address)
        port, client = _client(directory / "controller" / "admin.kubeconfig")
        node = Nodes(network).boot(NODE)
        _join(node, directory, addresses["agents"], registry)
        found = Site(node, port, client)
        wait(found.connect(), "/api/v1/nodes", _is_ready, 60)
        yield found
    finally:
        network.estate.close()


def application(name: str) -> dict[str, Any]:
    """One that sleeps."""
    return {
        "apiVersion": "orch.ks-tool.dev/v1",
        "kind": "Application",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"image": IMAGE, "nodeName": NODE, "args": ["exec sleep 1000000"]},
    }


def wait(connection: Connection, path: str, done: Callable[[dict[str, Any]], bool], timeout: float) -> None:
    """Until the list at `path` is as `done` wants it. Raises TimeoutError with what it was last."""
    deadline = time.monotonic() + timeout
    while not done(found := connection.call(request("GET", path))):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} did not become what it should in {timeout} s: {json.dumps(found)[:3000]}")
        time.sleep(0.2)


def _is_ready(nodes: dict[str, Any]) -> bool:
    conditions = [c for node in nodes["items"] for c in node.get("status", {}).get("conditions", [])]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _controller(directory: Path, address: str) -> dict[str, str]:
    ready = directory / "ready.json"
    doors = ("--api-bind", "127.0.0.1:0", "--agent-bind", f"{address}:0", "--server-name", address)
    command = (VENV / "bin" / "python", PROJECT / "manage.py", "runcontroller", *doors, "--ready-file", ready)
    server = Server("controller", command, directory / "controller.log", env=_environment(directory))
    server.wait_until(ready.exists)
    found: dict[str, str] = json.loads(ready.read_text())
    return found


def _environment(directory: Path) -> dict[str, str]:
    return {**os.environ, "HORCHESTRA_DATA_DIR": str(directory / "controller")}


def _client(kubeconfig: Path) -> tuple[int, ssl.SSLContext]:
    content = yaml.safe_load(kubeconfig.read_text())
    cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
    ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=ca)
    for part in ("certificate", "key"):
        kubeconfig.with_name(f"bench.{part}").write_bytes(base64.b64decode(user[f"client-{part}-data"]))
    context.load_cert_chain(kubeconfig.with_name("bench.certificate"), kubeconfig.with_name("bench.key"))
    return int(cluster["server"].rpartition(":")[2]), context


def _join(node: Node, directory: Path, endpoint: str, registry: Registry) -> None:
    bundle = directory / "node.bundle"
    manage = (VENV / "bin" / "python", PROJECT / "manage.py", "createnodecert", NODE)
    run(*manage, "--out", bundle, "--endpoint", endpoint, env=_environment(directory))
    node.write("/root/node.bundle", bundle.read_text(), 0o600)
    mirror = f"docker.io=http://{registry.endpoint}"
    node.exec("python3", "-m", "agent", "join", "/root/node.bundle", "--mirror", mirror)
    node.exec("systemctl", "enable", "--quiet", "--now", "horchestra-agent.service")
