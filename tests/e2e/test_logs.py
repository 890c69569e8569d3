"""`kubectl logs`: exact, live, only the addressed application's, and no trace on the node when the reader has left."""

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from horchestra.apiserver.app import STREAMS_PER_USER
from tests.e2e.machine import Machine, reports
from tests.e2e.site import Space
from tests.e2e.waiting import until

pytestmark = pytest.mark.node

TICKS = "i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.1; done"


@contextlib.contextmanager
def following(space: Space, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`kubectl logs -f` in the background."""
    command = space.kubectl.command("logs", "-f", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def written(space: Space, name: str, line: str) -> None:
    """Wait until the application has written its last line."""
    until(lambda: line in space.log(name).splitlines(), f"{line!r} in the log of {name}", 15, lambda: space.log(name))


def test_all_lines_come_in_order_and_the_tail_is_exact(space: Space) -> None:
    space.started("lines", "lab/lines:1", env={"LINES": "2000"})
    written(space, "lines", "line 2000")
    log = space.log("lines").splitlines()
    assert log[:2000] == [f"line {number}" for number in range(1, 2001)]
    after = log[2000:]
    assert space.kubectl("logs", "lines", "--tail=5").splitlines() == log[-5:]
    assert space.kubectl("logs", "lines", f"--tail={len(after) + 3}").splitlines() == [*log[1997:2000], *after]
    assert space.kubectl("logs", "lines", "--tail=0") == ""


def test_an_application_is_addressed_by_its_name_and_by_its_kind(space: Space) -> None:
    space.started("lines", "lab/lines:1")
    written(space, "lines", "line 100")
    by_name = space.kubectl("logs", "lines", "--tail=3")
    for words in (("app/lines",), ("application/lines",), ("applications.orch.ks-tool.dev/lines",), ("pod/lines",)):
        assert space.kubectl("logs", *words, "--tail=3") == by_name


def test_only_the_lines_of_the_addressed_namespace_come(space: Space) -> None:
    other = space.site.space(f"{space.namespace[:50]}-2")
    for one, word in ((space, "mine"), (other, "theirs")):
        one.started("same", command=["/bin/sh", "-c", f"echo {word}; exec /bin/sleep 600"])
    written(space, "same", "mine")
    written(other, "same", "theirs")
    assert space.log("same") == "mine\n"
    assert other.log("same") == "theirs\n"
    other.kubectl("delete", "namespace", other.namespace, "--wait=false")


def test_following_shows_live_lines_and_leaves_no_process_on_the_node(space: Space, machine: Machine) -> None:
    space.started("ticks", command=["/bin/sh", "-c", TICKS])
    with following(space, "ticks", "--tail=1") as process:
        seen = [int(line.split()[1]) for line in lines(process, 20)]
        assert seen == list(range(seen[0], seen[0] + 20))
        assert _followers(machine) == 1
        process.send_signal(signal.SIGINT)
        process.wait(10)
    until(lambda: _followers(machine) == 0, "the follower on the node ended", 10)


def test_following_goes_on_over_a_restart_and_ends_with_the_application(space: Space, machine: Machine) -> None:
    script = "echo began; trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"
    space.started("web", command=["/bin/sh", "-c", script])
    written(space, "web", "began")
    with following(space, "web") as process:
        assert lines(process, 1) == ["began"]
        machine.node.exec("kill", "-KILL", str(machine.pid("web", space.namespace)))
        assert lines(process, 1) == ["began"]
        space.kubectl("delete", "app", "web", "--wait=false")
        assert process.wait(20) == 0
    until(lambda: _followers(machine) == 0, "the follower on the node ended", 10)


def test_following_a_job_ends_when_the_job_does(space: Space) -> None:
    space.run("job", "lab/job-succeeds:1", restartPolicy="Never", env={"SECONDS_OF_WORK": "2"})
    space.phase("job", "Running")
    with following(space, "job") as process:
        assert process.wait(15) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "working\ndone\n"


def test_previous_is_the_process_before(space: Space, machine: Machine) -> None:
    script = "echo $$ of $INVOCATION_ID; trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"
    space.started("web", command=["/bin/sh", "-c", script])
    first = machine.environ("web", space.namespace)["INVOCATION_ID"]
    until(lambda: first in space.log("web"), "the first process's line", 10)
    assert "previous" in space.kubectl.run("logs", "web", "--previous").stderr
    machine.node.exec("kill", "-KILL", str(machine.pid("web", space.namespace)))
    until(lambda: space.status("web")["restartCount"] == 1 and machine.runs("web", space.namespace), "a restart", 10)
    before = space.kubectl("logs", "web", "--previous")
    assert first in before
    assert len(before.splitlines()) == 1


def test_since_timestamps_and_limit_bytes_cut_as_they_say(space: Space) -> None:
    space.started("lines", "lab/lines:1")
    written(space, "lines", "line 100")
    stamped = space.kubectl("logs", "lines", "--timestamps").splitlines()
    moment, _, text = stamped[49].partition(" ")
    assert text == "line 50"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", moment)
    assert (
        abs(datetime.now().astimezone().timestamp() - datetime.fromisoformat(moment[:26] + "+00:00").timestamp()) < 60
    )
    since = space.kubectl("logs", "lines", f"--since-time={moment}").splitlines()
    assert "line 50" in since
    assert len(since) <= len(stamped)
    assert space.kubectl("logs", "lines", "--since=1h").splitlines()[0] == "line 1"
    time.sleep(1.1)
    assert "line" not in space.kubectl("logs", "lines", "--since=1s")
    assert space.kubectl("logs", "lines", "--limit-bytes=20") == "line 1\nline 2\nline 3"[:20]


def test_bytes_that_are_no_text_and_long_lines_arrive_as_they_were_written(space: Space) -> None:
    script = (
        r"printf '\377\376 \033[31mred\033[0m \001 tab\there\n'; printf 'no newline at the end'; printf '\n\n'; "
        "i=0; while [ $i -lt 1000 ]; do printf 0123456789012345678901234567890123456789012345678901234567890123; "
        "i=$((i+1)); done; echo; echo end; exec /bin/sleep 600"
    )
    space.started("odd", command=["/bin/sh", "-c", script])
    written(space, "odd", "end")
    done = subprocess.run(space.kubectl.command("logs", "odd"), capture_output=True, check=True, timeout=20)
    first, second, empty, long, end = done.stdout.split(b"\n")[:5]
    assert first == b"\xff\xfe \x1b[31mred\x1b[0m \x01 tab\there"
    assert (second, empty) == (b"no newline at the end", b"")
    assert long == b"0123456789012345678901234567890123456789012345678901234567890123" * 1000
    assert end == b"end"


def test_more_streams_of_one_user_than_allowed_are_refused(space: Space) -> None:
    space.started("ticks", command=["/bin/sh", "-c", TICKS])
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(following(space, "ticks", "--tail=1")) for _ in range(STREAMS_PER_USER)]
        for process in opened:
            lines(process, 1)
        status, body = space.site.controller.request("GET", f"/api/v1/namespaces/{space.namespace}/pods/ticks/log")
        assert status == 429
        assert "limit" in body
    until(lambda: space.kubectl.run("logs", "ticks", "--tail=1").returncode == 0, "a stream is free again", 15)


def test_an_application_on_a_node_that_is_away_has_no_logs_and_says_which_node(space: Space) -> None:
    away = space.site.machines["sav-02"]
    space.started("web", node="sav-02")
    away.stop_agent()
    try:
        done = until(lambda: _refused(space), "a refusal", 15)
        assert 'node "sav-02"' in done or "sav-02" in done
        status, _ = space.site.controller.request("GET", f"/api/v1/namespaces/{space.namespace}/pods/web/log")
        assert status == 503
    finally:
        away.start_agent()
        reports(away, space.site.controller)


def _refused(space: Space) -> str:
    done = space.kubectl.run("logs", "web")
    return done.stderr if done.returncode else ""


def _followers(machine: Machine) -> int:
    """journalctl processes that follow on the node."""
    listed = machine.node.exec("ps", "-eo", "args").stdout.splitlines()
    return sum(line.startswith("journalctl") and "--follow" in line for line in listed)
