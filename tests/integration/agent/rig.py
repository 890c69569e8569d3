"""A node with the runtime in it, driven by files; see driver.py for the other end."""

import base64
import json
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab.node import Bind, Node
from tests.lab.nodes import Nodes
from tests.lab.registry import Registry

DRIVER = Path(__file__).with_name("driver.py")
_UNIT = """[Unit]
After=dbus.service
[Service]
ExecStart=/usr/bin/python3 /driver/driver.py {registry} {node}
KillMode=mixed
TimeoutStopSec=10
[Install]
WantedBy=multi-user.target
"""


def application(name: str, image: str, namespace: str = "default", generation: int = 1, **spec: Any) -> dict[str, Any]:
    """An Application object as it travels; the uid comes from the name, so that a second call is the same object."""
    uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{namespace}/{name}"))
    return {
        "apiVersion": "orch.ks-tool.dev/v1",
        "kind": "Application",
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "generation": generation},
        "spec": {"image": image, "nodeName": "sav-01", "minReadySeconds": 1, **spec},
    }


def volume(name: str, uid: str = "", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "orch.ks-tool.dev/v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "uid": uid or str(uuid.uuid5(uuid.NAMESPACE_DNS, f"pv/{name}")), "generation": 1},
        "spec": {"size": "1Gi", "node": "sav-01", **spec},
    }


def removal(obj: dict[str, Any], **fields: Any) -> dict[str, Any]:
    meta = obj["metadata"]
    return {
        "kind": obj["kind"],
        "namespace": meta.get("namespace", ""),
        "name": meta["name"],
        "uid": meta["uid"],
        **fields,
    }


class Rig:
    """One node and what is wanted of it."""

    def __init__(self, nodes: Nodes, registry: Registry, suite: str = "bookworm") -> None:
        self._nodes = nodes
        self.control = nodes.network.estate.directory / f"control-{uuid.uuid4().hex[:6]}"
        self.control.mkdir()
        binds = (Bind(self.control, "/control", writable=True), Bind(DRIVER.parent, "/driver"))
        self.node: Node = nodes.create(suite=suite, binds=binds)
        self.node.write(
            "/etc/systemd/system/driver.service", _UNIT.format(registry=registry.endpoint, node=self.node.name)
        )
        self.node.start()
        self.node.wait_ready()
        self.revision = 0
        self.lineage = "lineage-1"
        self._streams = 0

    def close(self) -> None:
        self._nodes.remove(self.node)
        shutil.rmtree(self.control)

    def start_agent(self) -> None:
        (self.control / "reports.json").unlink(missing_ok=True)
        self.node.exec("systemctl", "start", "driver")
        self.until(lambda: (self.control / "reports.json").exists(), "start the agent", 20)

    def stop_agent(self) -> None:
        self.node.exec("systemctl", "stop", "driver")

    def apply(self, *objects: dict[str, Any], secrets: Any = (), removals: Any = ()) -> None:
        """Make exactly these objects wanted; returns when the runtime has taken them."""
        self.revision += 1
        desired = {
            "applications": [o for o in objects if o["kind"] == "Application"],
            "volumes": [o for o in objects if o["kind"] == "PersistentVolume"],
            "secrets": list(secrets),
            "removals": list(removals),
        }
        text = json.dumps({"lineage": self.lineage, "revision": self.revision, "desired": desired})
        (self.control / "applied").unlink(missing_ok=True)
        (self.control / "desired.new").write_text(text)
        (self.control / "desired.new").rename(self.control / "desired.json")
        self.until(lambda: (self.control / "applied").exists(), "apply", 10)

    def reports(self) -> dict[str, dict[str, Any]]:
        """By namespace/name."""
        found = json.loads((self.control / "reports.json").read_text())
        return {f"{r['namespace']}/{r['name']}": r for r in found}

    def status(self, name: str, namespace: str = "default") -> dict[str, Any]:
        return dict(self.reports().get(f"{namespace}/{name}", {}).get("status", {}))

    def conditions(self, name: str) -> dict[str, dict[str, Any]]:
        return {c["type"]: c for c in self.status(name).get("conditions", [])}

    def messages(self, kind: str) -> list[dict[str, Any]]:
        path = self.control / "messages.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [m[kind] for m in map(json.loads, lines) if kind in m]

    def events(self, name: str) -> list[tuple[str, str]]:
        return [(e["reason"], e.get("message", "")) for e in self.messages("event") if e.get("name") == name]

    def removed(self) -> set[str]:
        return {uid for a in self.messages("acknowledgement") for uid in a.get("removed", [])}

    def until(self, done: Callable[[], Any], what: str, timeout: float = 15) -> Any:
        deadline = time.monotonic() + timeout
        while not (value := done()):
            if time.monotonic() > deadline:
                log = self.node.exec(
                    "journalctl", "-u", "driver", "-n", "30", "--no-pager", "-o", "cat", check=False
                ).stdout
                seen = "\n".join(self._summaries())
                raise AssertionError(f"did not {what} within {timeout} s; reports: {seen}\n{log}")
            time.sleep(0.02)
        return value

    def _summaries(self) -> list[str]:
        found = self.reports() if (self.control / "reports.json").exists() else {}
        return [f"{name}: {[r['status'].get(k) for k in ('phase', 'reason', 'message')]}" for name, r in found.items()]

    def phase(self, name: str, phase: str, timeout: float = 15, generation: int | None = None) -> dict[str, Any]:
        """Wait until the application has that phase (of that generation); its status."""

        def reached() -> bool:
            status = self.status(name)
            return status.get("phase") == phase and generation in (None, status.get("observedGeneration"))

        self.until(reached, f"see {name} {phase}", timeout)
        return self.status(name)

    def ready(self, name: str, timeout: float = 20, generation: int = 1) -> dict[str, Any]:
        """Wait until that generation runs and is Ready."""

        def reached() -> bool:
            current = self.status(name).get("currentRevision")
            return current == generation and self.conditions(name).get("Ready", {}).get("status") == "True"

        self.until(reached, f"see {name} Ready", timeout)
        return self.status(name)

    def show(self, unit: str, name: str) -> str:
        return self.node.exec("systemctl", "show", unit, "-p", name, "--value").stdout.strip()

    def pid(self, unit: str) -> int:
        return int(self.show(unit, "MainPID"))

    def inside(self, unit: str, *argv: str) -> str:
        """Run a host program in the file systems of the application's process."""
        return self.node.exec("nsenter", "-t", str(self.pid(unit)), "-m", "-r", *argv).stdout

    def strings(self, path: str) -> list[str]:
        """A file of NUL-terminated strings, byte for byte (text mode would turn a CR into a newline)."""
        raw = base64.b64decode(self.node.exec("base64", path).stdout)
        return raw.decode().split("\0")[:-1]

    def environ(self, unit: str) -> dict[str, str]:
        return dict(item.split("=", 1) for item in self.strings(f"/proc/{self.pid(unit)}/environ"))

    def open_log(self, obj: dict[str, Any], **request: Any) -> Path:
        """Ask for lines; the path of what comes (suffix .out), `.end` when it ended."""
        self._streams += 1
        path = self.control / "logs" / f"{self._streams}.json"
        meta = obj["metadata"]
        body = {"uid": meta["uid"], "namespace": meta["namespace"], "name": meta["name"], **request}
        path.with_suffix(".new").write_text(json.dumps(body))
        path.with_suffix(".new").rename(path)
        return path

    def log(self, obj: dict[str, Any], **request: Any) -> bytes:
        path = self.open_log(obj, **request)
        self.until(lambda: path.with_suffix(".end").exists(), "end the log", 10)
        end = path.with_suffix(".end").read_text()
        if end:
            raise RuntimeError(end)
        return path.with_suffix(".out").read_bytes()

    def log_lines_without_agent(self, unit: str) -> list[str]:
        """What the unit wrote, read by journalctl itself."""
        options = (f"OBJECT_SYSTEMD_UNIT={unit}", "-o", "cat", "--no-pager", "-q")
        return self.node.exec("journalctl", *options, check=False).stdout.splitlines()
