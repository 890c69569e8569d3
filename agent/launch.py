"""What a process is started with: the values whose change needs a restart, and nothing else.

Two launches with the same `key` run the same process; limits, labels, policies and the rendering of units are not
in it.
"""

import hashlib
import json
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Literal

from agent.errors import AgentError
from agent.images.config import ImageConfig
from agent.images.view import ImageView
from agent.profiles import Profile
from agent.users import Account
from horchestra.apimachinery import quantity
from horchestra.kinds.application import ApplicationSpec, VolumeMount

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_STRING = 131_071  # MAX_ARG_STRLEN of Linux without its final NUL


@dataclass(frozen=True, slots=True)
class Mount:
    """pv: `source` is the volume's uid and `sub` a directory in it. tmpfs: `size` in bytes. files: `source` names the
    Secret or ConfigMap (`secret.NAME`, `configmap.NAME`)."""

    kind: Literal["pv", "tmpfs", "files"]
    path: str
    """In the image, without symlinks: systemd leaves some that it cannot follow unmounted, and says nothing."""
    source: str = ""
    sub: str = ""
    size: int = 0
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    image: str
    """Digest of the image's manifest."""
    program: str
    """Absolute path in the root; `argv[0]` is what the process sees."""
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    secret_environment: tuple[tuple[str, str, str, str], ...]
    """(variable, Secret or ConfigMap, its name, key): values come at start, out of sight of unit files."""
    account: Account
    working_dir: str
    profile: Profile
    drop: tuple[str, ...]
    low_port: bool
    mounts: tuple[Mount, ...]

    @property
    def key(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def build(
    spec: ApplicationSpec,
    config: ImageConfig,
    view: ImageView,
    digest: str,
    account: Account,
    volumes: Mapping[str, str],
) -> Launch:
    """The launch of `spec` with its image. `volumes`: PersistentVolume name to uid, those on this node.

    Raises AgentError NoCommand, CommandNotFound, InvalidEnvironment, VolumeNotFound.
    """
    environment, from_sources = _environment(spec, config, account)
    argv = config.argv(tuple(spec.command or ()), tuple(spec.args or ()))
    for text in argv:
        _check_size(text, "an argument")
    working_dir = spec.workingDir or config.working_dir or "/"
    mounts = tuple(_mount(mount, _real(view, mount.path), volumes) for mount in spec.volumeMounts)
    program = _program(view, argv[0], dict(environment).get("PATH", _DEFAULT_PATH), working_dir, mounts)
    return Launch(
        image=digest,
        program=program,
        argv=argv,
        environment=tuple(environment.items()),
        secret_environment=from_sources,
        account=account,
        working_dir=working_dir,
        profile=spec.securityContext.profile,
        drop=tuple(sorted(spec.securityContext.capabilities.drop)),
        low_port=any(port.port < 1024 for port in spec.ports),
        mounts=mounts,
    )


def _environment(
    spec: ApplicationSpec, config: ImageConfig, account: Account
) -> tuple[dict[str, str], tuple[tuple[str, str, str, str], ...]]:
    """The image's variables, then the spec's; PATH, HOME and USER where neither says."""
    environment = {name: value for name, value in config.env if _ENV_NAME.fullmatch(name)}
    sources = []
    for variable in spec.environment():
        if not _ENV_NAME.fullmatch(variable.name):
            raise AgentError(
                "InvalidEnvironment",
                f"spec.env: systemd passes variables named by letters, digits and '_' only, not {variable.name[:80]!r}",
            )
        source = variable.valueFrom
        if source is None:
            environment[variable.name] = variable.value
            _check_size(f"{variable.name}={variable.value}", f"spec.env {variable.name}")
            continue
        environment.pop(variable.name, None)
        selector = source.secretKeyRef or source.configMapKeyRef
        if selector is not None:
            kind = "Secret" if source.secretKeyRef else "ConfigMap"
            sources.append((variable.name, kind, selector.name, selector.key))
    named = {name for name, *_ in sources}
    defaults = {"PATH": _DEFAULT_PATH, "HOME": account.home} | ({"USER": account.name} if account.name else {})
    for name, value in defaults.items():
        if name not in named:
            environment.setdefault(name, value)
    return environment, tuple(sources)


def _real(view: ImageView, path: str) -> str:
    """`path` without symlinks, as far as the image has it."""
    below: list[str] = []
    here = PurePosixPath(path)
    while (real := view.resolve(str(here))) is None and here != here.parent:
        below.insert(0, here.name)
        here = here.parent
    return str(PurePosixPath(real or "/", *below))


def _mount(mount: VolumeMount, path: str, volumes: Mapping[str, str]) -> Mount:
    if mount.pv is not None:
        if mount.pv not in volumes:
            raise AgentError("VolumeNotFound", f'volume "{mount.pv}" does not exist on this node; create it to go on')
        if any(ord(c) < 32 or ord(c) == 127 for c in mount.subPath):
            # The start script reads it as a part of a line.
            raise AgentError("InvalidSubPath", f"subPath {mount.subPath[:120]!r} holds a control character")
        return Mount("pv", path, volumes[mount.pv], mount.subPath, read_only=mount.readOnly)
    if mount.tmpfs is not None:
        return Mount("tmpfs", path, size=quantity.byte_count(mount.tmpfs.size), read_only=mount.readOnly)
    if mount.secret is not None:
        return Mount("files", path, f"secret.{mount.secret.name}", read_only=True)
    if mount.configMap is not None:
        return Mount("files", path, f"configmap.{mount.configMap.name}", read_only=True)
    raise AgentError("InvalidSpec", f"the mount at {mount.path} names nothing to mount")


def _program(view: ImageView, word: str, search: str, working_dir: str, mounts: tuple[Mount, ...]) -> str:
    """The program as execvp(3) in the root would find it. Raises AgentError CommandNotFound, NotExecutable."""
    if "/" in word:
        path = str(PurePosixPath(working_dir) / word)
        if any(PurePosixPath(_real(view, path)).is_relative_to(mount.path) for mount in mounts):
            return path  # on a volume: only the start can tell
        status = view.stat(path)
        if status is None:
            raise AgentError("CommandNotFound", f"{path} does not exist in the image; check spec.command")
        if not stat.S_ISREG(status.st_mode) or not status.st_mode & 0o111:
            raise AgentError("NotExecutable", f"{path} in the image is not an executable file; check spec.command")
        return path
    for directory in search.split(":"):
        path = str(PurePosixPath(working_dir) / (directory or ".") / word)
        status = view.stat(path)
        if status is not None and stat.S_ISREG(status.st_mode) and status.st_mode & 0o111:
            return path
    raise AgentError("CommandNotFound", f"{word!r} is in no directory of the image's PATH ({search})")


def _check_size(text: str, what: str) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > _MAX_STRING:
        raise AgentError("SpecTooLarge", f"{what} is larger than the {_MAX_STRING} bytes that Linux passes on")
