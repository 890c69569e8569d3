"""Carries what applications print from their FIFOs to the journal. Runs as its own unit, without the agent.

Why a FIFO: systemd connects standard output to a journald socket, and a socket cannot be opened by name. Images of the
hubs do just that (/dev/stdout, /proc/self/fd/1) and fail with ENXIO; with a FIFO they work, as with other runtimes.

`DIRECTORY/UID` is the FIFO of one application, made anew by the start script before each start; `DIRECTORY/UID.unit`
holds its unit and its name in the log. The script then writes "UID\\n" to `DIRECTORY/.control` and waits until the new
FIFO is open, which is after the old one was read to its end: so each line is known to belong to one process.

systemd keeps a copy of each FIFO's descriptor (FDSTORE=1 of sd_notify(3)): while the pump is started anew, what an
application prints waits in the pipe, and the application is not told that nobody reads.

Entries go by journald's native protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL), byte for byte, empty lines too.
OBJECT_SYSTEMD_UNIT from a process of root is what `journalctl -u UNIT` also looks for (journalctl(1)).

Standard library only, and nothing of this project: it is started with `python3 -IS` and stays small.
"""

import contextlib
import fcntl
import os
import select
import socket
import struct
import sys
import time
from pathlib import Path

CONTROL = ".control"
LINE_MAX = 48 << 10
"""Bytes of one entry; a longer line becomes several, all but the last marked HORCHESTRA_LINE=partial."""
_READ = 64 << 10
_PIPE_SIZE = 1 << 20
_FIRST_FD = 3
"""Of those that systemd passes on, SD_LISTEN_FDS_START of sd_listen_fds(3)."""
_F_SETPIPE_SZ = 1031
_JOURNAL = "/run/systemd/journal/socket"
_INVOCATIONS = Path("/run/systemd/units")
_RETRY_SECONDS = 0.1
_LAST_WORDS = 4 << 20
"""Bytes read at most of a FIFO that is given up: somebody may still write into it."""
_ALIVE_SECONDS = 10.0
"""How often systemd is told that this program works (WatchdogSec= is three times that)."""


class Manager:
    """systemd, as sd_notify(3) speaks to it; nobody when it did not start this program."""

    def __init__(self, address: str) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._due = 0.0

    def alive(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _ALIVE_SECONDS
            self._say(b"WATCHDOG=1")

    def keep(self, uid: str, fd: int) -> None:
        self._say(f"FDSTORE=1\nFDNAME={uid}".encode(), fd)

    def drop(self, uid: str) -> None:
        self._say(f"FDSTOREREMOVE=1\nFDNAME={uid}".encode())

    def close(self) -> None:
        self._socket.close()

    def _say(self, words: bytes, *fds: int) -> None:
        if self._address:
            with contextlib.suppress(OSError):
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
                self._socket.sendmsg([words], rights, 0, self._address)


class Journal:
    """The socket of journald; waits for it when it is away, so that nothing is lost while it restarts."""

    def __init__(self, address: str, manager: Manager) -> None:
        self._address = address
        self._manager = manager
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # Not settimeout(): that waits until three quarters of the buffer are free.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(_ALIVE_SECONDS), 0))

    def send(self, entry: bytes) -> None:
        while True:
            self._manager.alive()
            try:
                self._socket.sendto(entry, self._address)
                return
            except BlockingIOError:
                continue
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
        for _ in range(_LAST_WORDS // _READ):
            if not self.read(journal):
                break
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
    def __init__(self, directory: Path, journal: Journal, manager: Manager) -> None:
        self._directory = directory
        self._journal = journal
        self._manager = manager
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
            self._manager.alive()
            self.step(_ALIVE_SECONDS)

    def step(self, timeout: float) -> None:
        """One round: news of starts first, then a piece of each FIFO that has something."""
        ready = [fd for fd, _ in self._epoll.poll(timeout)]
        for fd in ready:
            self._take_news()  # a start waits for it, and each piece of a busy FIFO takes its time
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
            self._manager.drop(uid)
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
        self._manager.keep(uid, fd)


def main(arguments: list[str]) -> None:
    manager = Manager(os.environ.get("NOTIFY_SOCKET", ""))
    pump = Pump(Path(arguments[0]), Journal(_JOURNAL, manager), manager)
    # What systemd kept is open again by now, by its path.
    for fd in range(_FIRST_FD, _FIRST_FD + int(os.environ.get("LISTEN_FDS", "0"))):
        os.close(fd)
    pump.run()


if __name__ == "__main__":
    main(sys.argv[1:])
