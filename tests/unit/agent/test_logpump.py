"""What an application prints reaches the journal byte for byte, each line as one entry of one process."""

import os
import socket
from pathlib import Path

import pytest

from agent.logpump import LINE_MAX, Journal, Manager, Pump

UID = "2c34ccb3-0ca1-4453-8dbf-decdf60296e3"


class Bench:
    """A pump between a FIFO and a datagram socket that stands for journald's."""

    def __init__(self, directory: Path, manager: Manager | None = None) -> None:
        self.directory = directory / "log"
        self.journald = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.journald.bind(str(directory / "journal"))
        self.journald.settimeout(5)
        self.manager = manager or Manager("")
        self.pump = Pump(self.directory, Journal(str(directory / "journal"), self.manager), self.manager)

    def start(self, unit: str = "horchestra-app-web.service") -> int:
        """What the start script does; the writing end of the new FIFO."""
        fifo = self.directory / UID
        fifo.unlink(missing_ok=True)
        os.mkfifo(fifo, 0o622)
        (self.directory / f"{UID}.unit").write_text(f"{unit}\nweb\n")
        with (self.directory / ".control").open("w") as control:
            control.write(f"{UID}\n")
        self.pump.step(5)
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)

    def entry(self) -> dict[bytes, bytes]:
        data = self.journald.recv(1 << 20)
        head, _, tail = data.partition(b"MESSAGE\n")
        fields = dict(line.split(b"=", 1) for line in head.splitlines())
        size = int.from_bytes(tail[:8], "little")
        return {**fields, b"MESSAGE": tail[8 : 8 + size]}

    def close(self) -> None:
        self.journald.close()
        self.manager.close()


@pytest.fixture
def bench(tmp_path: Path):
    bench = Bench(tmp_path)
    yield bench
    bench.close()
    bench.pump.close()


def test_lines_arrive_byte_for_byte_empty_ones_too(bench: Bench) -> None:
    fd = bench.start()
    os.write(fd, b"one\n\n\xff\x00\x1b[31m\r\n")
    bench.pump.step(5)
    assert [bench.entry()[b"MESSAGE"] for _ in range(3)] == [b"one", b"", b"\xff\x00\x1b[31m\r"]
    os.close(fd)


def test_an_entry_names_its_unit_and_its_application(bench: Bench) -> None:
    fd = bench.start()
    os.write(fd, b"hello\n")
    bench.pump.step(5)
    entry = bench.entry()
    assert entry[b"OBJECT_SYSTEMD_UNIT"] == b"horchestra-app-web.service"
    assert (entry[b"SYSLOG_IDENTIFIER"], entry[b"HORCHESTRA_UID"]) == (b"web", UID.encode())
    os.close(fd)


def test_a_long_line_is_cut_into_marked_pieces(bench: Bench) -> None:
    fd = bench.start()
    line = bytes(range(1, 10)) + b"x" * LINE_MAX
    os.write(fd, line[: LINE_MAX + 3])
    bench.pump.step(5)
    os.write(fd, line[LINE_MAX + 3 :] + b"\n")
    bench.pump.step(5)
    first, second = bench.entry(), bench.entry()
    assert first[b"HORCHESTRA_LINE"] == b"partial"
    assert b"HORCHESTRA_LINE" not in second
    assert first[b"MESSAGE"] + second[b"MESSAGE"] == line
    os.close(fd)


def test_the_next_start_comes_after_all_that_the_last_process_printed(bench: Bench) -> None:
    old = bench.start()
    os.write(old, b"last words\nwithout an end")
    os.close(old)
    new = bench.start("horchestra-app-next.service")
    os.write(new, b"first words\n")
    bench.pump.step(5)
    entries = [bench.entry() for _ in range(3)]
    assert [e[b"MESSAGE"] for e in entries] == [b"last words", b"without an end", b"first words"]
    assert entries[1][b"HORCHESTRA_LINE"] == b"unended"
    assert [e[b"OBJECT_SYSTEMD_UNIT"] for e in entries] == [
        b"horchestra-app-web.service",
        b"horchestra-app-web.service",
        b"horchestra-app-next.service",
    ]
    os.close(new)


def test_a_pump_that_starts_late_finds_the_fifos_that_are_there(bench: Bench, tmp_path: Path) -> None:
    fd = bench.start()
    bench.pump.close()
    bench.pump = Pump(bench.directory, Journal(str(tmp_path / "journal"), bench.manager), bench.manager)
    os.write(fd, b"still here\n")
    bench.pump.step(5)
    assert bench.entry()[b"MESSAGE"] == b"still here"
    os.close(fd)


def test_an_old_fifo_that_somebody_still_fills_holds_up_nothing(bench: Bench) -> None:
    old = bench.start()

    class Endless:
        def read(self, journal: Journal) -> bool:
            return True

    bench.pump._sources[UID].read = Endless().read  # type: ignore[method-assign]
    new = bench.start()
    os.write(new, b"fresh\n")
    bench.pump.step(5)
    assert bench.entry()[b"MESSAGE"] == b"fresh"
    os.close(old)
    os.close(new)


def test_systemd_keeps_a_descriptor_of_each_fifo_until_it_is_renewed(tmp_path: Path) -> None:
    systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.bind(str(tmp_path / "notify"))
    systemd.settimeout(5)
    manager = Manager(str(tmp_path / "notify"))
    bench = Bench(tmp_path, manager)
    writer = bench.start()
    words, fds, _, _ = socket.recv_fds(systemd, 1000, 1)
    assert (words, len(fds)) == (f"FDSTORE=1\nFDNAME={UID}".encode(), 1)
    assert os.path.samestat(os.fstat(fds[0]), os.fstat(writer))
    second = bench.start()
    assert systemd.recv(1000) == f"FDSTOREREMOVE=1\nFDNAME={UID}".encode()
    for fd in (*fds, writer, second):
        os.close(fd)
    bench.close()
    bench.pump.close()
    manager.close()
    systemd.close()
