"""Environment and arguments arrive byte for byte, and none of them becomes anything else on the way."""

import pytest

from tests.e2e.machine import Machine
from tests.e2e.site import Space
from tests.e2e.waiting import until

pytestmark = pytest.mark.node

AWKWARD = {
    "SPACES": "  leading, double  and trailing  ",
    "QUOTES": "\"double\" 'single' `back`",
    "BACKSLASHES": "a\\b\\\\c\\n\\",
    "PERCENT": "%h %n %% 100%",
    "DOLLAR": "$HOME ${HOME} $$ $(id)",
    "SEMICOLON": "a ; b",
    "NEWLINES": "first\nExecStartPre=/bin/touch /tmp/pwned\n[Service]\n\nlast\n",
    "TABS": "\ta\tb\t",
    "CONTROLS": "\x01\x1b[31mred\x7f",
    "UNICODE": "Ω🙂\u2028 end",
    "COMMENT": "# not a comment",
    "EMPTY": "",
    "EQUALS": "a=b=c",
    "LONG": "x" * 100_000,
    "lower_case": "names too",
}
PRINT = 'for word in "$@"; do echo "<$word>"; done; exec /bin/sleep 600'


def test_variables_arrive_byte_for_byte(space: Space, machine: Machine) -> None:
    space.started("web", env=AWKWARD)
    environ = machine.environ("web", space.namespace)
    assert {name: environ.get(name) for name in AWKWARD} == AWKWARD
    assert not machine.node.path("/tmp/pwned").exists()


def test_the_list_form_arrives_as_the_map_does(space: Space, machine: Machine) -> None:
    space.started("web", env=[{"name": name, "value": value} for name, value in AWKWARD.items()])
    environ = machine.environ("web", space.namespace)
    assert {name: environ.get(name) for name in AWKWARD} == AWKWARD


def test_arguments_arrive_byte_for_byte(space: Space, machine: Machine) -> None:
    words = ["-dash", "@at", "+plus", "!bang", ":colon", *(value for value in AWKWARD.values() if len(value) < 1000)]
    space.started("web", command=["/bin/sh", "-c", PRINT, "name"], args=words)
    log = "".join(f"<{word}>\n" for word in words)
    pid = machine.pid("web", space.namespace)
    until(lambda: "/bin/sleep" in machine.node.exec("cat", f"/proc/{pid}/cmdline").stdout, "the words are printed", 5)
    space.started("cmdline", command=["/bin/sleep", "600"], args=[])
    assert machine.node.exec("cat", f"/proc/{machine.pid('cmdline', space.namespace)}/cmdline").stdout == (
        "/bin/sleep\x00600\x00"
    )
    until(lambda: space.log("web") == log, "the words in the log", 5, lambda: space.log("web"))


def test_what_the_host_has_in_its_environment_stays_there(space: Space, machine: Machine) -> None:
    space.started("web")
    environ = machine.environ("web", space.namespace)
    assert environ["PATH"] == "/bin"
    assert set(environ) <= {"PATH", "HOME", "USER", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID"}, environ


def test_a_name_that_systemd_cannot_pass_is_a_reason(space: Space) -> None:
    space.run("web", env={"discovery.type": "single-node"})
    status = space.phase("web", "Pending", reason="InvalidEnvironment")
    assert "discovery.type" in status["message"]


def test_a_nul_byte_is_refused_with_its_field(space: Space) -> None:
    words = ("create", "--raw", f"/apis/orch.ks-tool.dev/v1/namespaces/{space.namespace}/applications", "-f", "-")
    body = (
        '{"apiVersion":"orch.ks-tool.dev/v1","kind":"Application","metadata":{"name":"web"},'
        '"spec":{"image":"docker.io/lab/no-user:1","env":{"BAD":"a\\u0000b"}}}'
    )
    done = space.kubectl.run(*words, input=body)
    assert done.returncode == 1
    assert "NUL" in done.stderr
    assert "spec.env" in done.stderr
