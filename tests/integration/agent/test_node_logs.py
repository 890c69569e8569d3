"""Exactly the lines that were asked for, in order, for as long as there are some."""

from typing import Any

import pytest

from tests.integration.agent.rig import Rig, application

pytestmark = pytest.mark.node
IMAGE = "docker.io/lab/lines:1"
COUNTS = "i=0; while :; do i=$((i+1)); echo n $i; sleep 0.05; done"


def lines(generation: int = 1, **env: str) -> dict[str, Any]:
    return application("lines", IMAGE, generation=generation, env=env)


def journalctls(rig: Rig) -> int:
    return len(rig.node.exec("pgrep", "-x", "journalctl", check=False).stdout.split())


def test_the_tail_the_limit_and_the_times(rig: Rig) -> None:
    app = lines(LINES="200")
    rig.apply(app)
    rig.ready("lines", 30)
    rig.until(lambda: rig.log(app).count(b"\n") == 201, "print", 10)  # and one line of id(1)
    everything = rig.log(app).decode().splitlines()
    assert everything[:200] == [f"line {i}" for i in range(1, 201)]
    assert rig.log(app, tail_lines=5).decode().splitlines() == everything[-5:]
    assert rig.log(app, tail_lines=0) == b""
    assert rig.log(app, limit_bytes=17) == b"line 1\nline 2\nlin"
    stamped = rig.log(app, tail_lines=1, timestamps=True).decode()
    stamp, _, rest = stamped.partition(" ")
    assert rest == everything[-1] + "\n"
    assert len(stamp) == len("2026-01-01T00:00:00.000000000Z")
    assert rig.log(app, since_time=stamp).decode().splitlines()[-1] == everything[-1]
    assert rig.log(app, since_seconds=0) == b""


def test_strange_bytes_and_long_lines_arrive_as_they_were_written(rig: Rig) -> None:
    script = (
        "head -c 1000000 /dev/zero | tr '\\0' 'x'; echo; printf 'a\\000b\\n\\377\\376\\n\\n\\033[31mred\\r50%%\\n'; "
        "printf unfinished; exec sleep 1000"
    )
    script = script.replace("| tr '\\0' 'x'", "| sed 's/./x/g'")
    python = "head -c 60000 /bin/busybox >/dev/null; "
    app = application("bytes", IMAGE, command=["/bin/sh", "-c", python + _long_line() + script.partition("echo; ")[2]])
    rig.apply(app)
    rig.ready("bytes", 30)
    expected = b"x" * 131072 + b"\na\0b\n\xff\xfe\n\n\x1b[31mred\r50%\n"
    rig.until(lambda: rig.log(app).startswith(expected), "print", 10)
    assert rig.log(app, tail_lines=5).startswith(b"x" * 131072 + b"\na\0b\n")


def _long_line() -> str:
    """Shell of busybox that prints one line of 128 KiB."""
    return "s=x; i=0; while [ $i -lt 17 ]; do s=$s$s; i=$((i+1)); done; echo $s; "


def test_following_goes_on_over_restarts_and_ends_with_the_reader(rig: Rig) -> None:
    app = application("ticks", IMAGE, command=["/bin/sh", "-c", COUNTS])
    rig.apply(app)
    rig.ready("ticks", 30)
    before = journalctls(rig)
    stream = rig.open_log(app, follow=True, tail_lines=1)
    out = stream.with_suffix(".out")
    rig.until(lambda: out.exists() and out.read_bytes().count(b"\n") > 10, "follow", 10)
    rig.node.exec("systemctl", "restart", "horchestra-app-ticks.service")
    rig.until(lambda: b"\nn 1\n" in out.read_bytes(), "follow over the restart", 10)
    rig.until(lambda: b"\nn 20\n" in out.read_bytes().partition(b"\nn 1\n")[2], "go on", 10)
    runs = out.read_text().split("n 1\n", 1)
    for run in (runs[0], "n 1\n" + runs[1]):
        numbers = [int(line.split()[1]) for line in run.splitlines()]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert journalctls(rig) == before + 1
    stream.unlink()
    rig.until(lambda: journalctls(rig) == before, "end journalctl", 5)


def test_the_previous_process_is_told_from_the_present_one(rig: Rig) -> None:
    app = application("again", IMAGE, command=["/bin/sh", "-c", "cat /proc/sys/kernel/random/uuid; exec sleep 1000"])
    rig.apply(app)
    rig.ready("again", 30)
    with pytest.raises(RuntimeError, match="NoPreviousProcess"):
        rig.log(app, previous=True)
    first = rig.log(app)
    rig.node.exec("kill", "-9", str(rig.pid("horchestra-app-again.service")))
    rig.until(lambda: rig.log(app).count(b"\n") == 2, "restart", 10)
    assert rig.log(app, previous=True) == first


def test_following_a_job_ends_when_it_is_finished(rig: Rig) -> None:
    app = application("job", "docker.io/lab/job-succeeds:1", restartPolicy="Never", env={"SECONDS_OF_WORK": "2"})
    rig.apply(app)
    rig.phase("job", "Running", 30)
    assert rig.log(app, follow=True) == b"working\ndone\n"


def test_two_namespaces_with_one_name_are_kept_apart(rig: Rig) -> None:
    here = application("same", IMAGE, command=["/bin/sh", "-c", "echo here; exec sleep 1000"])
    there = application("same", IMAGE, "other", command=["/bin/sh", "-c", "echo there; exec sleep 1000"])
    rig.apply(here, there)
    rig.until(lambda: rig.log(here) == b"here\n" and rig.log(there) == b"there\n", "print", 30)
