"""A node of the lab on which the real agent runs, and what one sees there without asking any agent."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from horchestra.apimachinery.names import unit_name
from tests.e2e.controller import Controller
from tests.e2e.waiting import until
from tests.lab.agent_runtime import SOURCES
from tests.lab.node import Node
from tests.lab.nodes import Nodes
from tests.lab.paths import PROJECT

AGENT = "horchestra-agent.service"


class Machine:
    """`name` is the node's name in the controller; the source of its agent is a copy that a test may change."""

    def __init__(self, nodes: Nodes, name: str, *, suite: str = "bookworm") -> None:
        self._nodes = nodes
        self.name = name
        self.source = nodes.network.estate.directory / f"source-{name}"
        for part in SOURCES:
            shutil.copytree(PROJECT / part, self.source / part, ignore=shutil.ignore_patterns("__pycache__"))
        self.node: Node = nodes.create(name, suite=suite, source=self.source)
        self.node.start()
        self.node.wait_ready()
        self.address = self.node.address
        self.bundle = ""

    def remove(self) -> None:
        self._nodes.remove(self.node)

    # The agent

    def join(self, bundle: str, registry: str) -> subprocess.CompletedProcess[str]:
        """Install a bundle; the agent is not started yet."""
        self.bundle = bundle
        self.node.write("/root/node.bundle", bundle, 0o600)
        words = ("join", "/root/node.bundle", "--mirror", f"docker.io=http://{registry}")
        return self.node.exec("python3", "-m", "agent", *words, check=False)

    def start_agent(self) -> None:
        self.node.exec("systemctl", "enable", "--quiet", "--now", AGENT)

    def stop_agent(self) -> None:
        self.node.exec("systemctl", "stop", AGENT)

    def restart_agent(self) -> None:
        self.node.exec("systemctl", "restart", AGENT)

    def kill_agent(self) -> None:
        self.node.exec("systemctl", "kill", "--signal=KILL", "--kill-whom=main", AGENT)

    def agent_log(self, lines: int = 40) -> str:
        return self.node.exec("journalctl", "-u", AGENT, "-n", str(lines), "-o", "cat", check=False).stdout

    # What systemd says

    def show(self, unit: str, *properties: str) -> list[str]:
        """The values of a unit's properties, in the order asked for."""
        words = [word for name in properties for word in ("-p", name)]
        lines = self.node.exec("systemctl", "show", *words, "--", unit).stdout.splitlines()
        values = dict(line.split("=", 1) for line in lines if "=" in line)
        return [values.get(name, "") for name in properties]

    def pid(self, name: str, namespace: str = "default") -> int:
        return int(self.show(unit_name(namespace, name), "MainPID")[0] or 0)

    def runs(self, name: str, namespace: str = "default") -> bool:
        return self.show(unit_name(namespace, name), "ActiveState", "SubState") == ["active", "running"]

    def invocations(self) -> dict[str, tuple[str, str]]:
        """InvocationID and MainPID of every application's unit that runs."""
        found = self.node.exec(
            "systemctl", "show", "horchestra-app-*.service", "-p", "Id", "-p", "InvocationID", "-p", "MainPID"
        )
        units = {}
        for block in found.stdout.split("\n\n"):
            values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
            if values.get("MainPID", "0") != "0":
                units[values["Id"]] = (values["InvocationID"], values["MainPID"])
        return units

    def nobody(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command as an unprivileged user of the node."""
        drop = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs")
        return self.node.exec(*drop, *argv, check=False)

    def environ(self, name: str, namespace: str = "default") -> dict[str, str]:
        """The environment of the process; empty while there is none."""
        path = Path(f"/proc/{self.node.leader}/root/proc/{self.pid(name, namespace)}/environ")
        raw = path.read_bytes() if path.exists() else b""
        return dict(item.decode().split("=", 1) for item in raw.split(b"\0") if item)

    def inside(self, name: str, namespace: str, *argv: str, check: bool = True) -> str:
        """Run a program of the application's root in its file systems, as root of the node."""
        enter = ("nsenter", "-t", str(self.pid(name, namespace)), "-m", "-r", "-w", *argv)
        return self.node.exec(*enter, check=check).stdout

    def volume(self, uid: str) -> Path:
        """The host's path of a volume's directory (bound from a real file system)."""
        return self.node.state / "volumes" / uid

    def volumes(self) -> set[str]:
        directory = self.node.state / "volumes"
        return {path.name for path in directory.iterdir()} if directory.exists() else set()


def joined(nodes: Nodes, controller: Controller, registry: str, names: Sequence[str]) -> list[Machine]:
    """Machines whose agents have reported to the controller."""
    made = []
    for name in names:
        machine = Machine(nodes, name)
        done = machine.join(controller.bundle(name), registry)
        assert done.returncode == 0, done.stderr
        machine.start_agent()
        made.append(machine)
    for machine in made:
        reports(machine, controller)
    return made


def reports(machine: Machine, controller: Controller, seconds: float = 30) -> None:
    """Wait until the controller hears the machine."""
    until(lambda: ready(controller, machine.name) == "True", f"{machine.name} Ready", seconds, machine.agent_log)


def ready(controller: Controller, node: str) -> str:
    """The status of the node's condition Ready, "" while there is none."""
    return str(condition(controller.get("node", node), "Ready").get("status", ""))


def condition(obj: dict[str, object] | None, kind: str) -> dict[str, str]:
    """One condition of an object; empty when it has none of that type."""
    status = (obj or {}).get("status") or {}
    assert isinstance(status, dict)
    return next((c for c in status.get("conditions") or [] if c["type"] == kind), {})
