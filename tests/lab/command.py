"""Runs host commands for the lab; a failure says which command failed and what it printed."""

import subprocess
from collections.abc import Mapping
from pathlib import Path


class CommandError(RuntimeError):
    """A host command ended with a code other than 0; the text holds argv, code and the tail of its output."""

    def __init__(self, argv: tuple[str, ...], code: int, output: str) -> None:
        super().__init__(f"{' '.join(argv)}: exit code {code}\n{output[-4000:]}")
        self.argv = argv
        self.code = code


def run(
    *argv: str | Path,
    input: str | None = None,
    check: bool = True,
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return its text output. Raises CommandError unless `check` is false."""
    words = tuple(str(word) for word in argv)
    done = subprocess.run(
        words, input=input, capture_output=True, text=True, errors="replace", timeout=timeout, env=env, cwd=cwd
    )
    if check and done.returncode != 0:
        raise CommandError(words, done.returncode, done.stdout + done.stderr)
    return done
