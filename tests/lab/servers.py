"""Real PostgreSQL and Redis servers for tests, on loopback ports of their own, their data in a temporary directory."""

import os
import pwd
import shutil
import signal
import tempfile
from pathlib import Path

from tests.lab.command import run
from tests.lab.server import Server, answers, free_port

# Nothing here has to survive the machine, but what was committed survives the server (so synchronous_commit stays on).
_FAST = ("fsync=off", "full_page_writes=off")


class PostgresServer:
    """A cluster of its own; `url(database)` is what DATABASE_URL takes. Measure durable writes with `durable`."""

    def __init__(self, *, durable: bool = False) -> None:
        self._durable = durable
        self._directory = Path(tempfile.mkdtemp(prefix="hlab-postgres-"))
        self._bin = _newest_postgres()
        # The server refuses to run as root.
        self._as = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups") if os.geteuid() == 0 else ()
        self.port = free_port()
        self._server: Server | None = None

    def start(self) -> None:
        """Make the cluster on first use, start it and wait until it answers."""
        data, log = self._directory / "data", self._directory / "log"
        if not data.exists():
            if self._as:
                nobody = pwd.getpwnam("nobody")
                os.chown(self._directory, nobody.pw_uid, nobody.pw_gid)
            options = ("--username=horchestra", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
            run(*self._as, self._bin / "initdb", *options, "--pgdata", data, cwd=self._directory)
        settings = (f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self._directory}")
        words = [word for setting in (*settings, *(() if self._durable else _FAST)) for word in ("-c", setting)]
        # A change of user may clear the parent-death signal that Server has set (setpriv(1)).
        keep = (*self._as, "--pdeathsig=keep") if self._as else ()
        self._server = Server("postgres", (*keep, self._bin / "postgres", "-D", data, *words), log)
        self._server.wait_until(lambda: self.accepts())

    def accepts(self) -> bool:
        """Whether the server takes queries (pg_isready)."""
        probe = (self._bin / "pg_isready", "--quiet", "--host=127.0.0.1", f"--port={self.port}")
        return run(*probe, check=False).returncode == 0

    def create_database(self, name: str) -> str:
        """A fresh empty database; returns its URL."""
        run(self._bin / "dropdb", "--if-exists", "--force", *self._client(), name)
        run(self._bin / "createdb", *self._client(), name)
        return self.url(name)

    def url(self, database: str) -> str:
        return f"postgresql://horchestra@127.0.0.1:{self.port}/{database}"

    def stop(self) -> None:
        """Stop at once, clients or not; the data stays for the next `start`."""
        if self._server is not None:
            self._server.stop(signal.SIGINT)
            self._server = None

    def crash(self) -> None:
        """SIGKILL the server; its children notice and end."""
        if self._server is not None:
            self._server.stop(signal.SIGKILL)
            self._server = None

    def remove(self) -> None:
        """Stop and delete the data."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _client(self) -> tuple[str, ...]:
        return ("--host=127.0.0.1", f"--port={self.port}", "--username=horchestra")


class RedisServer:
    """A Redis without persistence; `url` is what REDIS_URL takes."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="hlab-redis-"))
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._server: Server | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = ("--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--dir", str(self._directory))
        self._server = Server("redis", ("redis-server", *options), self._directory / "log")
        self._server.wait_until(lambda: answers("127.0.0.1", self.port))

    def stop(self) -> None:
        """Stop it; nothing is kept."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def remove(self) -> None:
        """Stop and delete its directory."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


def _newest_postgres() -> Path:
    """The programs' directory of the newest major version that Debian has installed here."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if not found:
        raise RuntimeError("PostgreSQL is not installed: run make deps")
    return found[-1]
