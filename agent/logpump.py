"""Carries what applications print from their FIFOs to the journal. Runs as its own unit, without the agent.

Why a FIFO: systemd connects standard output to a journald socket, and a socket cannot be opened by name. Images of the
hubs do just that (/dev/stdout, /proc/self/fd/1) and fail with ENXIO; with a FIFO they work, as with other runtimes.

`DIRECTORY/UID` is the FIFO of one application, made anew by the start script before each start; `DIRECTORY/UID.unit`
holds its unit and its name in the log. The script then writes "UID\\n" to `DIRECTORY/.control` and waits until the new
FIFO is open, which is after the old one was read to its end: so each line is known to belong to one process.

Entries go by journald's native protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL), byte for byte, empty lines too.
OBJECT_SYSTEMD_UNIT from a process of root is what `journalctl -u UNIT` also looks for (journalctl(1)).

Standard library only, and nothing of this project: it is started with `python3 -IS` and stays small.
"""

import contextlib
import fcntl
import os
import select
import socket
import sys
import time
from pathlib import Path

CONTROL = ".control"
LINE_MAX = 48 << 10
"""Bytes of one entry; a longer line becomes several, all but the last marked HORCHESTRA_LINE=partial."""
_READ = 64 << 10
_PIPE_SIZE = 1 << 20
_F_SETPIPE_SZ = 1031
_JOURNAL = "/run/systemd/journal/socket"
_INVOCATIONS = Path("/run/systemd/units")
_RETRY_SECONDS = 0.1


class Journal:
    """The socket of journald; waits for it when it is away, so that nothing is lost while it restarts."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def send(self, entry: bytes) -> None:
        while True:
            try:
                self._socket.sendto(entry, self._address)
                return
            except (ConnectionRefusedError, FileNotFoundError):
                time.sleep(_RETRY_SECONDS)

    def close(self) -> None:
        self._socket.close()


class Source:
    """One FIFO: the output of one process and its children."""

    def __init__(self, fd: int, uid: str, unit: str, identifier: str) -> None:
        self.fd = fd
        self._about = f"PRIORITY=6\nSYSLOG_IDENTIFIER={identifier}\nOBJECT_SYSTEMD_UNIT={unit}\nHORCHESTRA_UID={uid}\n"
        self._unit = unit
        self._fields = b""
        self._rest = b""

    def read(self, journal: Journal) -> bool:
        """Passes on one piece. False when there was nothing to read."""
        try:
            data = os.read(self.fd, _READ)
        except BlockingIOError:
            return False
        if not data:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._send(journal, line, b"")
        while len(self._rest) >= LINE_MAX:
            piece, self._rest = self._rest[:LINE_MAX], self._rest[LINE_MAX:]
            self._entry(journal, piece, b"HORCHESTRA_LINE=partial\n")
        return True

    def finish(self, journal: Journal) -> None:
        """Reads to the end; a last line without its newline is passed on too."""
        while self.read(journal):
            pass
        if self._rest:
            self._send(journal, self._rest, b"HORCHESTRA_LINE=unended\n")
        os.close(self.fd)

    def _send(self, journal: Journal, line: bytes, last: bytes) -> None:
        while len(line) > LINE_MAX:
            piece, line = line[:LINE_MAX], line[LINE_MAX:]
            self._entry(journal, piece, b"HORCHESTRA_LINE=partial\n")
        self._entry(journal, line, last)

    def _entry(self, journal: Journal, message: bytes, more: bytes) -> None:
        if not self._fields:
            self._fields = f"{self._about}HORCHESTRA_INVOCATION={invocation(self._unit)}\n".encode()
        size = len(message).to_bytes(8, "little")
        journal.send(b"".join((self._fields, more, b"MESSAGE\n", size, message, b"\n")))


def invocation(unit: str) -> str:
    """systemd's InvocationID of the process that was started last, from the link that systemd keeps."""
    with contextlib.suppress(OSError):
        return os.readlink(_INVOCATIONS / f"invocation:{unit}")
    return ""


class Pump:
    def __init__(self, directory: Path, journal: Journal) -> None:
        self._directory = directory
        self._journal = journal
        self._sources: dict[str, Source] = {}
        self._by_fd: dict[int, Source] = {}
        self._epoll = select.epoll()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(directory / CONTROL, 0o600)
        # Held for reading and writing: no writer ever waits for a reader, and nothing ends when one closes.
        self._control = os.open(directory / CONTROL, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll.register(self._control, select.EPOLLIN)
        self._asked = b""
        for path in directory.glob("*.unit"):
            self._renew(path.stem)

    def run(self) -> None:
        while True:
            self.step(-1)

    def step(self, timeout: float) -> None:
        """One round: news of starts first, then a piece of each FIFO that has something."""
        ready = [fd for fd, _ in self._epoll.poll(timeout)]
        if self._control in ready:
            self._take_news()
        for fd in ready:
            source = self._by_fd.get(fd)
            if source is not None:
                source.read(self._journal)

    def close(self) -> None:
        for fd in (*self._by_fd, self._control):
            os.close(fd)
        self._epoll.close()
        self._journal.close()

    def _take_news(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._asked += os.read(self._control, 4096)
        *names, self._asked = self._asked.split(b"\n")
        for name in names:
            self._renew(name.decode(errors="replace"))

    def _renew(self, uid: str) -> None:
        """Reads the old FIFO of an application to its end, then opens the new one, if there is one."""
        old = self._sources.pop(uid, None)
        if old is not None:
            self._epoll.unregister(old.fd)
            del self._by_fd[old.fd]
            old.finish(self._journal)
        try:
            unit, identifier, *_ = (self._directory / f"{uid}.unit").read_text().splitlines()
            fd = os.open(self._directory / uid, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, _F_SETPIPE_SZ, _PIPE_SIZE)
        source = Source(fd, uid, unit, identifier)
        self._sources[uid] = source
        self._by_fd[fd] = source
        self._epoll.register(fd, select.EPOLLIN)


def main(arguments: list[str]) -> None:
    Pump(Path(arguments[0]), Journal(_JOURNAL)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
