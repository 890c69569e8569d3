"""A test node: a real systemd in systemd-nspawn, with its own root, network namespace and control group.

The root is an overlay over a base that all nodes share, so that a node is there in well under a second. What must lie
on a real file system (`/var/lib/horchestra`: an overlay cannot carry another overlay's upper directory) is bound from
the run's directory. Methods block; async tests call them through `asyncio.to_thread`.
"""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab.command import CommandError, run
from tests.lab.network import LabNetwork

LOOP = Path(__file__).with_name("nspawn-loop.sh")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_READY_STATES = ("running", "degraded")


@dataclass(frozen=True, slots=True)
class Bind:
    """A host path that the node sees at `target`; read-only unless `writable`."""

    source: Path
    target: str
    writable: bool = False

    def option(self) -> str:
        return f"--bind{'' if self.writable else '-ro'}={self.source}:{self.target}"


class Node:
    """One nspawn machine; `index` gives its address on the network, `name` its hostname."""

    def __init__(self, name: str, network: LabNetwork, index: int, base: Path, binds: Sequence[Bind] = ()) -> None:
        self.name = name
        self.network = network
        self.index = index
        self.address = network.node_address(index)
        self.machine = f"{network.estate.name}-{name}"
        self.directory = network.estate.directory / "nodes" / name
        self.root = self.directory / "root"
        self.state = self.directory / "state"
        self.console = self.directory / "console.log"
        self._base = base
        self._binds = (Bind(self.state, "/var/lib/horchestra", writable=True), *binds)
        self._loop: subprocess.Popen[bytes] | None = None

    # Life

    def create(self) -> None:
        """Lay the root over the base and wire the network; what exists already is kept."""
        for part in ("upper", "work", "root", "state"):
            (self.directory / part).mkdir(parents=True, exist_ok=True)
        if not os.path.ismount(self.root):
            layers = f"lowerdir={self._base},upperdir={self.directory / 'upper'},workdir={self.directory / 'work'}"
            run("mount", "-t", "overlay", self.machine, "-o", layers, self.root)
        if not Path(f"/run/netns/{self.machine}").exists():
            run("ip", "netns", "add", self.machine)
            self._introduce()
        self.network.attach(self.machine, self.index)

    def start(self) -> None:
        """Boot; returns when the machine's PID 1 exists (use `wait_ready` for the rest)."""
        if self.running:
            return
        with self.console.open("ab") as console:
            # A session of its own: Ctrl-C at the tests does not reach the machine before they have cleaned up.
            self._loop = subprocess.Popen(
                [LOOP, _branch(), self.machine, *self._nspawn()],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._pid_file.write_text(str(self._loop.pid))
        self._wait("start", lambda: self._find_leader() is not None, 10)

    def wait_ready(self, timeout: float = 30) -> None:
        """Wait until systemd has finished booting. Raises TimeoutError with the end of the console."""
        self._wait("finish booting", self._is_ready, timeout)

    def boot(self) -> None:
        """Create, start and wait until ready."""
        self.create()
        self.start()
        self.wait_ready()

    def stop(self, timeout: float = 30) -> None:
        """Shut down cleanly and wait until it is off."""
        self._signal_leader(signal.SIGRTMIN + 4)
        self._wait_off(timeout)

    def power_cut(self) -> None:
        """Kill everything at once. The page cache of the host survives: writes that were not synced are not lost."""
        self._signal_leader(signal.SIGKILL)
        self._wait_off(10)

    def reboot(self, timeout: float = 30) -> None:
        """Reboot cleanly and wait until the new boot is ready."""
        before = self.leader
        self._signal_leader(signal.SIGRTMIN + 5)
        self._wait("boot again", lambda: self._find_leader() not in (None, before), timeout)
        self.wait_ready(timeout)

    def remove(self) -> None:
        """Power off and remove network namespace and control groups; root and state go with the run at the latest."""
        if self.running:
            self.power_cut()
        run("umount", "--lazy", self.root, check=False)
        run("ip", "netns", "delete", self.machine, check=False)
        for group in Path("/sys/fs/cgroup").glob(f"*/{self.machine}"):
            for below in (*sorted(group.rglob("*/"), reverse=True), group):
                with contextlib.suppress(OSError):
                    below.rmdir()
        self.network.estate.discard(self.directory)

    @property
    def running(self) -> bool:
        """Whether the supervising loop lives (it does between the two halves of a reboot too)."""
        if self._loop is not None:
            return self._loop.poll() is None
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            command = Path(f"/proc/{int(self._pid_file.read_text())}/cmdline").read_bytes()
            return LOOP.name.encode() in command and self.machine.encode() in command
        return False

    @property
    def leader(self) -> int:
        """The host's pid of the machine's PID 1. Raises RuntimeError when the node is off."""
        pid = self._find_leader()
        if pid is None:
            raise RuntimeError(f"node {self.name} is not running; console: {self.console}")
        return pid

    # Inside

    def exec(
        self, *argv: str, check: bool = True, timeout: float = 60, input: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the node as root and return its text output. Raises CommandError unless `check` is false."""
        return run(*self.command(*argv), check=check, timeout=timeout, input=input)

    def command(self, *argv: str) -> tuple[str, ...]:
        """`argv` so that it runs inside the node, for subprocesses that the caller wants to hold itself."""
        enter = ("nsenter", "-t", str(self.leader), "-m", "-p", "-n", "-i", "-u", "-C", "-w", "--")
        return (*enter, "env", "-i", f"PATH={_PATH}", "HOME=/root", "LANG=C.UTF-8", "TERM=dumb", *argv)

    def path(self, inside: str) -> Path:
        """The host's path of a file in the node's root, also while it is off (not for /run, /tmp and binds)."""
        return self.root / inside.lstrip("/")

    def write(self, inside: str, content: str, mode: int = 0o644) -> None:
        """Write a file into the node's root, directories included."""
        target = self.path(inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        target.chmod(mode)

    @property
    def bus_address(self) -> str:
        """The D-Bus address of the node's system bus as seen from the host."""
        return f"unix:path=/proc/{self.leader}/root/run/dbus/system_bus_socket"

    def journal(self, *options: str) -> str:
        """The node's persistent journal as text, also of a node that is off."""
        return run("journalctl", f"--root={self.root}", "--no-pager", "--quiet", *options).stdout

    # Network faults

    def cut(self) -> None:
        """Pull the cable: the node sees its carrier go."""
        self.network.ip("link", "set", self.network.link(self.index), "down")

    def silent_drop(self) -> None:
        """Lose every IP packet both ways without a word to either side (ARP still answers)."""
        for argv, device in (
            (self.network.command("nft", "-f", "-"), self.network.link(self.index)),
            (("ip", "netns", "exec", self.machine, "nft", "-f", "-"), "host0"),
        ):
            hook = f'type filter hook ingress device "{device}" priority 0; policy accept;'
            run(
                *argv,
                input=f"table netdev {self._drop_table} {{ chain lost {{ {hook} meta protocol != arp drop; }}; }}\n",
            )

    def heal(self) -> None:
        """End `cut` and `silent_drop`."""
        self.network.ip("link", "set", self.network.link(self.index), "up")
        for prefix in (self.network.command(), ("ip", "netns", "exec", self.machine)):
            run(*prefix, "nft", "delete", "table", "netdev", self._drop_table, check=False)

    # Parts

    @property
    def _pid_file(self) -> Path:
        return self.directory / "supervisor.pid"

    @property
    def _drop_table(self) -> str:
        return f"{self.machine}-drop".replace("-", "_")

    def _nspawn(self) -> list[str]:
        """The machine's command line.

        CAP_NET_ADMIN: without it PrivateNetwork= leaves lo down (systemd 252) or is skipped in silence (257).
        CAP_BPF with the bpf filter: without them IPAddressDeny= is ignored in silence.
        --keep-unit with --register=no: no machined is needed, and a reboot ends nspawn with code 133.
        """
        return [
            "systemd-nspawn",
            "--quiet",
            f"--directory={self.root}",
            f"--machine={self.machine}",
            f"--hostname={self.name}",
            "--register=no",
            "--keep-unit",
            f"--network-namespace-path=/run/netns/{self.machine}",
            "--capability=CAP_NET_ADMIN,CAP_BPF,CAP_PERFMON",
            "--system-call-filter=bpf",
            "--kill-signal=SIGRTMIN+3",
            "--console=pipe",
            "--link-journal=no",
            "--resolv-conf=off",
            "--timezone=off",
            *(bind.option() for bind in self._binds),
            "/nodeinit",
        ]

    def _introduce(self) -> None:
        """Give the fresh root its name, a machine-id that lasts, hosts and an empty resolver."""
        self.write("/etc/hostname", f"{self.name}\n")
        self.write("/etc/machine-id", f"{uuid.uuid4().hex}\n")
        self.write("/etc/hosts", f"127.0.0.1 localhost\n{self.address} {self.name}\n{self.network.address} lab\n")
        self.path("/etc/resolv.conf").unlink(missing_ok=True)
        self.write("/etc/resolv.conf", "")

    def _find_leader(self) -> int | None:
        """The grandchild of the loop that is PID 1 of its own namespace."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            for nspawn in _children(int(self._pid_file.read_text())):
                for child in _children(nspawn):
                    if _is_namespace_init(child):
                        return child
        return None

    def _is_ready(self) -> bool:
        pid = self._find_leader()
        if pid is None or not Path(f"/proc/{pid}/root/run/dbus/system_bus_socket").exists():
            return False
        try:
            return self.exec("systemctl", "is-system-running", check=False).stdout.strip() in _READY_STATES
        except (CommandError, RuntimeError):
            return False

    def _signal_leader(self, number: int) -> None:
        os.kill(self.leader, number)

    def _wait_off(self, timeout: float) -> None:
        self._wait("power off", lambda: not self.running, timeout)
        self._loop = None
        self._pid_file.unlink(missing_ok=True)

    def _wait(self, what: str, done: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            if time.monotonic() > deadline or (what != "power off" and not self.running):
                tail = self.console.read_text(errors="replace")[-2000:] if self.console.exists() else ""
                raise TimeoutError(f"node {self.name} did not {what} within {timeout} s; console:\n{tail}")
            time.sleep(0.02)


def _branch() -> str:
    """How `nspawn-loop.sh` gives a node a control group of its own on this machine."""
    # sd_booted(3): the test that systemd itself recommends.
    if Path("/run/systemd/system").is_dir():
        return "scope"
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        raise RuntimeError("nodes need systemd as PID 1 or cgroup v1 controllers in /sys/fs/cgroup; here is neither")
    return "cgroup"


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_namespace_init(pid: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            numbers = line.split()[1:]
            return len(numbers) > 1 and numbers[-1] == "1"
    return False
