"""Child processes of the lab that serve something: started, waited for, stopped, their output in a file."""

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class Server:
    """One child process. It gets a SIGKILL when the process that started it dies, unless it is `detached`."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        log: Path,
        *,
        detached: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        guard = () if detached else ("setpriv", "--pdeathsig", "KILL", "--")
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*guard, *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=detached,
                env=env,
            )
        self.pid = self._process.pid

    def wait_until(self, ready: Callable[[], bool], timeout: float = 20) -> None:
        """Wait for `ready`. Raises RuntimeError with the end of the log if the server ends or takes too long."""
        deadline = time.monotonic() + timeout
        while not ready():
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                state = f"ended with code {code}" if code is not None else f"was not ready within {timeout} s"
                raise RuntimeError(f"{self.name} {state}; {self.log} ends with:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM, timeout: float = 10) -> None:
        """Send a signal and wait for the end; after `timeout` seconds kill it."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def answers(address: str, port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
