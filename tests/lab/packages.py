"""Installs the Debian packages that the lab needs, and only those that are missing.

    python3 -m tests.lab.packages            # the system's own Python will do

Run by `make deps` before the virtual environment exists: standard library only, Python 3.11.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Package → what it is here for.
PACKAGES = {
    "python3-venv": "the virtual environment on a bare Debian",
    "git": "the linters list files through it",
    "systemd-container": "systemd-nspawn, the test nodes",
    "mmdebstrap": "root file systems of nodes and images",
    "iproute2": "bridges and network namespaces",
    "iputils-ping": "network checks from this side",
    "nftables": "packets lost in silence",
    "util-linux": "nsenter, setpriv",
    "docker-registry": "the OCI registry",
    "skopeo": "a second client of the registry, for comparison",
    "umoci": "a second unpacker of images, for comparison",
    "postgresql": "the second database of the controller",
    "redis-server": "the channel layer between replicas",
    "zstd": "layers and archives",
}
_POLICY = Path("/usr/sbin/policy-rc.d")


def missing() -> list[str]:
    """The packages of the list that are not installed."""
    query = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *PACKAGES]
    shown = subprocess.run(query, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout
    installed = {line.split()[0] for line in shown.splitlines() if line.endswith(" installed")}
    return [name for name in PACKAGES if name not in installed]


def install(names: list[str]) -> None:
    """apt-get install, without starting the servers that come with the packages. Raises CalledProcessError."""
    prefix = [] if os.geteuid() == 0 else ["sudo", "--preserve-env=DEBIAN_FRONTEND"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*prefix, "apt-get", "update", "-qq"], check=True, env=environment)
    command = [*prefix, "apt-get", "install", "-qq", "--yes", "--no-install-recommends", *names]
    with _servers_stay_off():
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def _servers_stay_off() -> Iterator[None]:
    """Debian starts a server when it is installed, unless policy-rc.d forbids it (invoke-rc.d(8)).

    Their ports are then free for the lab, which starts servers of its own. A policy that the machine has stays.
    """
    if os.geteuid() != 0 or _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


def main() -> int:
    names = missing()
    if not names:
        return 0
    print(f"installing Debian packages: {' '.join(names)}", flush=True)
    try:
        install(names)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        print(f"could not install {' '.join(names)}: {error}; install them by hand and repeat", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
