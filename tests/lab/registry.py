"""Debian's docker-registry on an address of the caller's choice, with storage in a directory."""

from pathlib import Path

import yaml

from tests.lab.server import Server, answers


class Registry:
    """A plain-http OCI registry; `endpoint` is `host:port`."""

    def __init__(self, directory: Path, address: str, port: int = 5000) -> None:
        self.directory = directory
        self.address = address
        self.port = port
        self.endpoint = f"{address}:{port}"
        self._server: Server | None = None

    def start(self) -> None:
        """Start it and wait until it answers. Raises RuntimeError with the end of its log."""
        self._server = Server("registry", self.command(), self.directory / "registry.log")
        self._server.wait_until(self.ready)

    def command(self) -> tuple[str | Path, ...]:
        """The command line that serves it, for a caller that holds the process itself; writes the configuration."""
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "config.yml"
        config.write_text(yaml.safe_dump(self._config()))
        return ("docker-registry", "serve", config)

    def ready(self) -> bool:
        """Whether it takes connections."""
        return answers(self.address, self.port)

    def stop(self) -> None:
        """Stop it; what was pushed stays in the directory."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _config(self) -> dict[str, object]:
        return {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {
                "filesystem": {"rootdirectory": str(self.directory / "storage")},
                "cache": {"blobdescriptor": "inmemory"},
                "delete": {"enabled": True},
            },
            "http": {"addr": self.endpoint},
        }
