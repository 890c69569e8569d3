"""The controller as people start it: `manage.py runcontroller` in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tests.integration.nodes.estate import Agent, install
from tests.integration.nodes.standin import eventually
from tests.lab.paths import PROJECT


class Process:
    """`runcontroller` on free ports."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.ready_file = data_dir.with_name("ready")

    async def start(self, *arguments: str, api: str = "127.0.0.1:0", agents: str = "127.0.0.1:0", **env: str) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "manage.py", "runcontroller", "--api-bind", api, "--agent-bind", agents,
            "--ready-file", str(self.ready_file), *arguments,
            cwd=PROJECT, env={**os.environ, "HORCHESTRA_DATA_DIR": str(self.data_dir), **env},
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def ready(self) -> dict[str, str]:
        await eventually(lambda: self.ready_file.exists() or self.process.returncode is not None, 30)
        if self.process.returncode is not None:
            raise AssertionError(await self.words())
        content: dict[str, str] = json.loads(self.ready_file.read_text())
        return content

    async def words(self) -> str:
        """All it said, after it has ended."""
        assert self.process.stderr is not None
        async with asyncio.timeout(30):
            said = await self.process.stderr.read()
            await self.process.wait()
        return said.decode()

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def manage(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "manage.py", *arguments, cwd=PROJECT,
            env={**os.environ, "HORCHESTRA_DATA_DIR": str(self.data_dir)},
            stderr=asyncio.subprocess.STDOUT, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, _ = await process.communicate()
        return process.returncode or 0, said.decode()


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    made = Process(tmp_path / "data")
    yield made
    await made.end()


async def test_the_first_start_makes_everything_and_a_node_joins_while_it_runs(
    process: Process, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await process.start()
    addresses = await process.ready()
    modes = {
        name: (process.data_dir / name).stat().st_mode & 0o777
        for name in ("pki/ca.key", "pki/server.key", "admin.kubeconfig", "secret.key", ".")
    }
    assert modes == {**dict.fromkeys(modes, 0o600), ".": 0o700}
    kubeconfig = yaml.safe_load(Path(addresses["kubeconfig"]).read_text())
    assert kubeconfig["clusters"][0]["cluster"]["server"] == addresses["api"]
    out = tmp_path / "sav-01.bundle"
    code, said = await process.manage("createnodecert", "sav-01", "--out", str(out), "--endpoint", addresses["agents"])
    assert code == 0, said
    assert out.stat().st_mode & 0o777 == 0o600
    agent = Agent(tmp_path / "agent", json.loads(out.read_text())).start()
    await eventually(lambda: agent.runtime.applied)
    # SIGTERM: goodbye to the nodes, and gone within five seconds.
    began = time.monotonic()
    process.process.send_signal(signal.SIGTERM)
    words = await process.words()
    assert process.process.returncode == 0, words
    assert time.monotonic() - began < 5
    assert "Traceback" not in words
    await eventually(lambda: "Shutdown: the controller stops" in caplog.text)
    assert not process.ready_file.exists()
    await agent.kill()


async def test_a_second_controller_on_the_same_data_is_refused(process: Process, tmp_path: Path) -> None:
    await process.start()
    await process.ready()
    second = Process(process.data_dir)
    second.ready_file = tmp_path / "second"
    await second.start()
    words = await second.words()
    assert second.process.returncode == 1
    assert f"another controller (pid {process.process.pid}) uses {process.data_dir}" in words
    assert "Traceback" not in words


@pytest.mark.parametrize("door", ["api", "agents"])
async def test_a_taken_port_is_named_with_its_holder(process: Process, door: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        await process.start(**{door: f"127.0.0.1:{port}"})
        words = await process.words()
    assert process.process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in words
    assert f"(pid {os.getpid()})" in words
    assert "Traceback" not in words


async def test_a_data_directory_that_cannot_be_written_is_named(process: Process, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process.data_dir = tmp_path / "file" / "data"
    await process.start()
    words = await process.words()
    assert process.process.returncode == 1
    assert str(process.data_dir) in words or str(process.data_dir.parent) in words
    assert "Traceback" not in words


async def test_a_database_that_does_not_answer_is_named(process: Process) -> None:
    await process.start(DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    words = await process.words()
    assert process.process.returncode == 1
    assert "the database does not answer" in words
    assert "Traceback" not in words


async def test_the_api_speaks_tls_13_only_and_never_resumes(process: Process) -> None:
    await process.start("--server-name", "controller.example")
    addresses = await process.ready()
    host, _, port = addresses["api"].removeprefix("https://").rpartition(":")
    ca = str(process.data_dir / "pki" / "ca.pem")
    context = ssl.create_default_context(cafile=ca)
    assert await asyncio.to_thread(_tls, context, host, int(port), "controller.example") == ("TLSv1.3", False)
    old = ssl.create_default_context(cafile=ca)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        await asyncio.to_thread(_tls, old, host, int(port), "controller.example")


async def test_the_kubeconfig_and_the_certificate_follow_the_bound_address(process: Process) -> None:
    for api, name, server in (("127.0.0.2:0", "", "127.0.0.2"), ("0.0.0.0:0", "localhost", "localhost")):
        await process.start(*(("--server-name", name) if name else ()), api=api)
        addresses = await process.ready()
        port = int(addresses["api"].rpartition(":")[2])
        kubeconfig = yaml.safe_load(Path(addresses["kubeconfig"]).read_text())
        assert kubeconfig["clusters"][0]["cluster"]["server"] == f"https://{server}:{port}"
        context = ssl.create_default_context(cafile=str(process.data_dir / "pki" / "ca.pem"))
        assert await asyncio.to_thread(_tls, context, "127.0.0.2", port, server) == ("TLSv1.3", False)
        process.process.terminate()
        await process.words()


def _tls(context: ssl.SSLContext, host: str, port: int, name: str) -> tuple[str | None, bool]:
    with socket.create_connection((host, port), timeout=5) as plain:
        with context.wrap_socket(plain, server_hostname=name) as connection:
            connection.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            while connection.recv(4096):
                pass
            version, session = connection.version(), connection.session
    return version, bool(session and session.has_ticket)


async def test_a_controller_that_is_stopped_is_noticed_by_its_nodes(process: Process, tmp_path: Path) -> None:
    await process.start()
    addresses = await process.ready()
    out = tmp_path / "bundle"
    await process.manage("createnodecert", "sav-01", "--out", str(out), "--endpoint", addresses["agents"])
    agent = Agent(tmp_path / "agent", json.loads(out.read_text())).start()
    await eventually(lambda: agent.connection()["connected"])
    process.process.send_signal(signal.SIGSTOP)
    try:
        stopped = time.monotonic()
        await eventually(lambda: not agent.connection()["connected"], 12)
        assert time.monotonic() - stopped <= 10
    finally:
        process.process.send_signal(signal.SIGCONT)
    await eventually(lambda: agent.connection()["connected"], 40)
    await agent.kill()


async def test_an_agent_that_is_stopped_is_noticed_and_heals(process: Process, tmp_path: Path) -> None:
    await process.start()
    addresses = await process.ready()
    out = tmp_path / "bundle"
    await process.manage("createnodecert", "sav-01", "--out", str(out), "--endpoint", addresses["agents"])
    directory = tmp_path / "agent"
    install(directory, json.loads(out.read_text()))
    toml = f'node = "sav-01"\nendpoint = "{addresses["agents"]}"\nstate_dir = "{directory}"\n'
    (directory / "agent.toml").write_text(toml)
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.nodes.agent_process", str(directory), cwd=PROJECT
    )
    try:
        await eventually(lambda: _ready(process, addresses) == "True", 20)
        agent.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        await eventually(lambda: _ready(process, addresses) == "Unknown", 14)
        assert time.monotonic() - stopped <= 11  # each look takes a moment
        agent.send_signal(signal.SIGCONT)
        await eventually(lambda: _ready(process, addresses) == "True", 20)
    finally:
        agent.kill()
        await agent.wait()


def _ready(process: Process, addresses: dict[str, str]) -> str:
    """The node's Ready condition, as an administrator's client reads it."""
    import http.client
    import tempfile
    from base64 import b64decode

    user = yaml.safe_load(Path(addresses["kubeconfig"]).read_text())["users"][0]["user"]
    context = ssl.create_default_context(cafile=str(process.data_dir / "pki" / "ca.pem"))
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(b64decode(user["client-certificate-data"]) + b64decode(user["client-key-data"]))
        pair.flush()
        context.load_cert_chain(pair.name)
    client = http.client.HTTPSConnection(addresses["api"].removeprefix("https://"), context=context, timeout=5)
    client.request("GET", "/api/v1/nodes/sav-01")
    answer = json.loads(client.getresponse().read())
    client.close()
    conditions = answer.get("status", {}).get("conditions", []) if answer["kind"] == "Node" else []
    return next((str(c["status"]) for c in conditions if c["type"] == "Ready"), "")
