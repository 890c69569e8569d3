"""Where the agent keeps what: one place for every path on the node."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Layout:
    """`state` survives reboots and lies on a real file system; `run` is a tmpfs; `units` is systemd's directory."""

    state: Path = Path("/var/lib/horchestra")
    run: Path = Path("/run/horchestra")
    units: Path = Path("/etc/systemd/system")

    @property
    def desired(self) -> Path:
        return self.state / "desired.json"

    @property
    def layers(self) -> Path:
        return self.state / "l"

    @property
    def volumes(self) -> Path:
        return self.state / "volumes"

    @property
    def apps(self) -> Path:
        return self.state / "apps"

    @property
    def identities(self) -> Path:
        """User ids given to applications whose image names none."""
        return self.state / "users.json"

    @property
    def starter(self) -> Path:
        """The script that runs before each start of an application."""
        return self.state / "bin" / "app-start"

    def root(self, number: int) -> Path:
        """Mountpoint of an application's root file system."""
        return self.state / "roots" / str(number)

    def skeleton(self, number: int) -> Path:
        """Top layer of that root: the mountpoints that the image lacks."""
        return self.state / "skel" / str(number)

    def app(self, uid: str) -> Path:
        """Record, restart counter, done marker and sealed secrets of one application."""
        return self.apps / uid

    def open_secrets(self, uid: str) -> Path:
        """Opened secrets of one application, in memory only."""
        return self.run / "secrets" / uid

    def sub_paths(self, uid: str) -> Path:
        """Mountpoints for directories inside volumes, one for each such mount of the application."""
        return self.run / "sub" / uid
