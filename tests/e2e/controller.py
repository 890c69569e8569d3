"""A real controller process, and a plain HTTPS reader of its API for questions that are asked many times a second."""

import base64
import http.client
import json
import os
import shutil
import signal
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.kubectl import Kubectl, newest
from tests.lab.command import run
from tests.lab.paths import PROJECT, VENV
from tests.lab.server import Server

_PYTHON = VENV / "bin" / "python"
_ROUTES = {
    "app": "/apis/orch.ks-tool.dev/v1",
    "pv": "/apis/orch.ks-tool.dev/v1",
}
_PLURALS = {
    "app": "applications",
    "pv": "persistentvolumes",
    "node": "nodes",
    "namespace": "namespaces",
    "secret": "secrets",
    "configmap": "configmaps",
    "event": "events",
}


class Controller:
    """`manage.py runcontroller` on a data directory of its own, under an address that nodes reach."""

    def __init__(
        self, directory: Path, address: str, *, api_port: int = 6443, agent_port: int = 6444, database: str = ""
    ) -> None:
        self.data = directory
        self.data.mkdir(parents=True, exist_ok=True)
        self.agents = f"{address}:{agent_port}"
        self.log = directory / "controller.log"
        self.kubeconfig = directory / "admin.kubeconfig"
        self._api_port = api_port
        self._address = address
        self._ready_file = directory / "ready.json"
        self._environment = {**os.environ, "HORCHESTRA_DATA_DIR": str(directory)}
        if database:
            self._environment["DATABASE_URL"] = database
        self._server: Server | None = None
        self._context: ssl.SSLContext | None = None

    # Life

    def start(self) -> None:
        """Start it and wait until both doors are open."""
        self._ready_file.unlink(missing_ok=True)
        doors = ("--api-bind", f"127.0.0.1:{self._api_port}", "--agent-bind", self.agents)
        command = (_PYTHON, PROJECT / "manage.py", "runcontroller", *doors, "--server-name", self._address)
        self._server = Server(
            "controller", (*command, "--ready-file", self._ready_file), self.log, env=self._environment
        )
        self._server.wait_until(self._ready_file.exists, timeout=60)

    def stop(self) -> None:
        """SIGTERM, and wait until it is gone."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._server is not None:
            self._server.stop(number)
            self._server = None

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    # What it keeps

    def keep_database(self, name: str) -> Path:
        """Copy the SQLite database of a stopped controller; returns the copy."""
        copy = self.data / f"{name}.sqlite3"
        shutil.copyfile(self.data / "db.sqlite3", copy)
        return copy

    def replace_database(self, copy: Path | None) -> None:
        """Put a copy, or nothing, in the place of a stopped controller's database."""
        for part in ("db.sqlite3", "db.sqlite3-wal", "db.sqlite3-shm"):
            (self.data / part).unlink(missing_ok=True)
        if copy is not None:
            shutil.copyfile(copy, self.data / "db.sqlite3")

    # Talking to it

    def manage(self, *words: str | Path) -> str:
        return run(_PYTHON, PROJECT / "manage.py", *words, env=self._environment).stdout

    def bundle(self, node: str) -> str:
        """A fresh bundle for a node, as text."""
        path = self.data / f"{node}.bundle"
        path.unlink(missing_ok=True)
        self.manage("createnodecert", node, "--out", path, "--endpoint", self.agents)
        return path.read_text()

    def kubectl(self, namespace: str = "default", binary: Callable[[], Path] = newest) -> Kubectl:
        return Kubectl(binary(), self.kubeconfig, namespace)

    def get(self, kind: str, name: str = "", namespace: str = "") -> dict[str, Any] | None:
        """The object, or the list without a name; None when there is none."""
        status, body = self.request("GET", path_of(kind, name, namespace))
        if status == 404:
            return None
        assert status == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    def request(self, method: str, path: str) -> tuple[int, str]:
        """One request as the administrator; status and body."""
        door = http.client.HTTPSConnection("127.0.0.1", self._api_port, context=self._tls(), timeout=10)
        try:
            door.request(method, path)
            answer = door.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            door.close()

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            config = yaml.safe_load(self.kubeconfig.read_text())
            user = config["users"][0]["user"]
            pair = self.data / "admin.pem"
            pair.write_bytes(
                base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"])
            )
            authority = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"])
            self._context = ssl.create_default_context(cadata=authority.decode())
            self._context.load_cert_chain(pair)
        return self._context


def path_of(kind: str, name: str = "", namespace: str = "") -> str:
    """The API path of a kind by its short name."""
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{_ROUTES.get(kind, '/api/v1')}{scope}/{_PLURALS[kind]}" + (f"/{name}" if name else "")
