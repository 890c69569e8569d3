"""What the spec says arrives byte for byte in a process under a real systemd; nothing becomes a directive."""

import random

import pytest

from tests.integration.agent.rig import Rig, application, volume

pytestmark = pytest.mark.node
UNIT = "horchestra-app-words.service"
HOSTILE = [
    "plain", "", " ", "two words", '"', "'", "\\", "trailing\\", "%h %% %n", "$HOME ${X} $$", ";", " ; ", "-n", "@x",
    "+x", "!!x", ":x", "#x", "a\nExecStartPre=/bin/touch /tmp/pwned", "[Service]\nUser=0", "\t\r\x0b\x1b[0m\x7f",
    "\u2028é😀", "x" * 100_000, "\\x41\\n", "a=b", "%", "$", "`id`", "\n", "end \\\n", "'\"'", "\\\\", "{a,b}*?",
]  # fmt: skip


def check(rig: Rig, generation: int, texts: list[str]) -> None:
    env = [{"name": f"V{i}", "value": text} for i, text in enumerate(texts)]
    stay = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"
    command = ["/bin/sh", "-c", stay, *texts]
    rig.apply(application("words", "docker.io/lab/no-user:1", generation=generation, env=env, command=command))
    rig.ready("words", 40, generation)
    environment = rig.environ(UNIT)
    assert [environment[f"V{i}"] for i in range(len(texts))] == texts
    assert rig.strings(f"/proc/{rig.pid(UNIT)}/cmdline")[3:] == texts


def test_hostile_words_arrive_byte_for_byte(rig: Rig) -> None:
    check(rig, 1, HOSTILE)
    assert rig.node.exec("ls", "/tmp").stdout.find("pwned") < 0
    assert rig.inside(UNIT, "/bin/ls", "/tmp") == ""


def test_random_words_arrive_byte_for_byte(rig: Rig) -> None:
    generator = random.Random(20)
    alphabet = [chr(c) for c in range(1, 128)] + ["é", "ß", "→", "😀", "\\", '"', "%", "$", "\n"] * 4
    texts = ["".join(generator.choices(alphabet, k=generator.randrange(40))) for _ in range(120)]
    check(rig, 10, texts)


def test_mount_paths_with_odd_characters_are_the_paths_they_say(rig: Rig) -> None:
    odd = ["/a b:c", "/q\"u'ote", "/back\\slash\\", "/per%hcent $x", "/trail ", "/é:😀"]
    mounts = [{"tmpfs": {"size": "1Mi"}, "path": path} for path in odd]
    mounts += [{"pv": "odd", "path": path + "/pv", "subPath": " s u:b%h\\ "} for path in ("/x y", "/z:%n")]
    app = application("paths", "docker.io/lab/no-user:1", volumeMounts=mounts, workingDir="/work dir\\")
    rig.apply(app, volume("odd"))
    rig.ready("paths", 30)
    pid = rig.pid("horchestra-app-paths.service")
    mounted = rig.node.exec("cat", f"/proc/{pid}/mountinfo").stdout
    points = {
        line.split(" ")[4].encode().decode("unicode_escape").encode("latin-1").decode() for line in mounted.splitlines()
    }
    assert {*odd, "/x y/pv", "/z:%n/pv"} <= points
    assert rig.node.exec("readlink", f"/proc/{pid}/cwd").stdout.rstrip("\n").endswith("/work dir\\")
