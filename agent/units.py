"""Renders the unit files of an application: the mount of its root and the service. Values in, text out.

The files alone bring the application back after a reboot, with neither agent nor controller.
"""

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agent import output, profiles, quoting, rootfs, starter
from agent.errors import AgentError
from agent.launch import Launch, Mount
from agent.layout import Layout
from horchestra.apimachinery import quantity
from horchestra.apimachinery.names import unit_name
from horchestra.kinds.application import ApplicationSpec

WANTED_BY = "multi-user.target"
SLICE = "horchestra.slice"
TASKS_MAX = 8192
_MAX_LAYERS = 500  # the kernel's limit for lower directories of an overlay
_MAX_OPTIONS = 4095  # a page, for mount(2)
_SHM_BYTES = 64 << 20
_HEADER = "# Made by the Horchestra agent; changes are overwritten."
_MANAGER_VARIABLES = (
    "LANG", "LANGUAGE", "LC_CTYPE", "LC_NUMERIC", "LC_TIME", "LC_COLLATE", "LC_MONETARY", "LC_MESSAGES", "LC_PAPER",
    "LC_NAME", "LC_ADDRESS", "LC_TELEPHONE", "LC_MEASUREMENT", "LC_IDENTIFICATION", "USER", "LOGNAME", "SHELL",
)  # fmt: skip
"""What systemd passes on from the host or makes up from the host's account: nothing an image should see."""


@dataclass(frozen=True, slots=True)
class UnitFile:
    """A file in systemd's directory; `wanted_by`: the target that starts it at boot, through a symlink."""

    name: str
    text: str
    wanted_by: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """What rendering must know of the node. `own_processes`: PrivatePIDs= was seen to work."""

    layout: Layout
    systemd: int
    own_processes: bool = False


@dataclass(frozen=True, slots=True)
class Root:
    """An assembled root: its number and the names of its layers below `l/`, top first."""

    number: int
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    namespace: str
    name: str
    uid: str

    @property
    def unit(self) -> str:
        return unit_name(self.namespace, self.name)


def render(
    app: Identity, spec: ApplicationSpec, launch: Launch, root: Root, host: Host, stop_signal: str = ""
) -> list[UnitFile]:
    """The unit files of `app`. Raises AgentError when a value cannot be carried."""
    return [
        render_mount(root, host.layout),
        UnitFile(app.unit, _service(app, spec, launch, root, host, stop_signal), WANTED_BY),
    ]


def mount_unit(root: int, layout: Layout) -> str:
    """The name that systemd demands for the mount of that root."""
    return quoting.unit_path(str(layout.root(root))) + ".mount"


def layers_in_use(layout: Layout) -> frozenset[str]:
    """Names of the layers that a mount unit on disk stands on, whatever records say. Blocks."""
    return frozenset(name for text in _texts(layout, "*.mount") for name in _layer(layout).findall(text))


def roots_in_use(layout: Layout) -> frozenset[int]:
    """Numbers of the roots that the unit of an application on disk starts from, whatever records say. Blocks."""
    texts = _texts(layout, "horchestra-app-*.service")
    return frozenset(int(number) for text in texts for number in _ROOT.findall(text))


_ROOT = re.compile(r"^Root=([0-9]{1,9})$", re.MULTILINE)


def _layer(layout: Layout) -> re.Pattern[str]:
    return re.compile(re.escape(str(layout.layers).replace("%", "%%")) + r"/([0-9a-z]+)")


def _texts(layout: Layout, pattern: str) -> Iterable[str]:
    for path in layout.units.glob(pattern):
        with contextlib.suppress(OSError):
            yield path.read_text(errors="replace")


def render_mount(root: Root, layout: Layout) -> UnitFile:
    lower = ":".join(map(str, (layout.skeleton(root.number), *(layout.layers / name for name in root.layers))))
    options = f"ro,nodev,lowerdir={lower}"
    if len(root.layers) >= _MAX_LAYERS or len(options) > _MAX_OPTIONS:
        raise AgentError("TooManyLayers", f"the image has {len(root.layers)} layers, more than one mount can take")
    lines = [
        _HEADER,
        "[Unit]",
        f"Description=Horchestra: root {root.number}",
        "DefaultDependencies=no",
        quoting.directive("RequiresMountsFor", quoting.path_word(str(layout.state))),
        "Conflicts=umount.target",
        "Before=umount.target",
        "[Mount]",
        "What=overlay",
        quoting.directive("Where", str(layout.root(root.number)).replace("%", "%%")),
        "Type=overlay",
        quoting.directive("Options", options.replace("%", "%%")),
        # Newer mount(8) hands each option over by fsconfig(2), which takes 255 characters at most.
        "Environment=LIBMOUNT_FORCE_MOUNT2=always",
    ]
    return UnitFile(mount_unit(root.number, layout), "\n".join(lines) + "\n")


def _service(app: Identity, spec: ApplicationSpec, launch: Launch, root: Root, host: Host, stop_signal: str) -> str:
    start = starter.unit(app.uid)
    directory = host.layout.app(app.uid)
    lines: list[tuple[str, str] | str] = [
        _HEADER,
        "[Unit]",
        ("Description", quoting.text_line(f"Horchestra application {app.namespace}/{app.name}")),
        ("RequiresMountsFor", quoting.path_word(str(host.layout.root(root.number)))),
        ("Requires", start),
        ("After", f"{start} network.target nss-lookup.target"),
        ("ConditionPathExists", f"!{directory / 'finished'}"),
        ("StartLimitIntervalSec", "0"),
        "[Service]",
        ("Type", "exec"),
        ("ExecStart", _command(launch)),
        ("Restart", "always"),
        ("RestartSec", "0"),
        *_ending(spec, stop_signal),
        *_identity(launch),
        ("StandardOutput", output.directive(host.layout, app.uid)),
        ("StandardError", "inherit"),
        *_environment(launch, host, app),
        ("RootDirectory", str(host.layout.root(root.number)).replace("%", "%%")),
        ("MountAPIVFS", "yes"),
        ("WorkingDirectory", quoting.path_line(launch.working_dir)),
        *_mounts(launch, host, app, _memory(spec)),
        *profiles.directives(
            launch.profile, host.systemd, own_processes=host.own_processes, low_port=launch.low_port
        ),
        *profiles.capabilities(
            launch.profile, root=launch.account.uid == 0, low_port=launch.low_port, drop=launch.drop
        ),
        *_limits(spec),
        "[Install]",
        ("WantedBy", WANTED_BY),
        "[X-Horchestra]",
        ("Namespace", app.namespace),
        ("Name", app.name),
        ("UID", app.uid),
        ("Root", str(root.number)),
        ("StartKey", launch.key),
    ]  # fmt: skip
    return "\n".join(line if isinstance(line, str) else quoting.directive(*line) for line in lines) + "\n"


def _command(launch: Launch) -> str:
    """`@` lets argv[0] differ from the program's path."""
    return " ".join([quoting.word(f"@{launch.program}"), *(quoting.argument(word) for word in launch.argv)])


def _ending(spec: ApplicationSpec, stop_signal: str) -> Iterable[tuple[str, str]]:
    if stop_signal:
        yield "KillSignal", stop_signal
    # 0 would mean for ever.
    yield "TimeoutStopSec", str(spec.terminationGracePeriodSeconds) if spec.terminationGracePeriodSeconds else "1ms"
    if spec.activeDeadlineSeconds is not None:
        yield "RuntimeMaxSec", str(spec.activeDeadlineSeconds)


def _identity(launch: Launch) -> Iterable[tuple[str, str]]:
    if launch.account.uid:  # naming root makes systemd 257 take CAP_SETUID away
        yield "User", str(launch.account.uid)
    if launch.account.uid or launch.account.gid:
        yield "Group", str(launch.account.gid)
    if launch.account.groups:
        yield "SupplementaryGroups", " ".join(map(str, launch.account.groups))
    yield "Slice", SLICE


def _environment(launch: Launch, host: Host, app: Identity) -> Iterable[tuple[str, str]]:
    for name, value in launch.environment:
        yield "Environment", quoting.assignment(name, value)
    if launch.secret_environment:
        yield "EnvironmentFile", str(host.layout.open_secrets(app.uid) / "env").replace("%", "%%")
    own = {name for name, _ in launch.environment} | {name for name, *_ in launch.secret_environment}
    yield "UnsetEnvironment", " ".join(name for name in _MANAGER_VARIABLES if name not in own)


def _mounts(launch: Launch, host: Host, app: Identity, memory: int | None) -> Iterable[tuple[str, str]]:
    for path in rootfs.SYSTEM_FILES:
        if not any(PurePosixPath(path).is_relative_to(mount.path) for mount in launch.mounts):
            yield "BindReadOnlyPaths", f"-{path}"
    yield "TemporaryFileSystem", f"/dev/shm:mode=1777,nosuid,nodev,size={memory or _SHM_BYTES}"
    for index, mount in enumerate(launch.mounts):
        yield from _mount(index, mount, host, app)


def _mount(index: int, mount: Mount, host: Host, app: Identity) -> Iterable[tuple[str, str]]:
    if mount.kind == "tmpfs":
        options = f"mode=1777,nosuid,nodev,size={mount.size}" + (",ro" if mount.read_only else "")
        yield "TemporaryFileSystem", quoting.filesystem_word(mount.path, options)
        return
    if mount.kind == "pv":
        source: Path = host.layout.volumes / mount.source
        if mount.sub:  # mounted there before each start, by who can tell a directory from a planted symlink
            source = host.layout.sub_paths(app.uid) / str(index)
    else:
        source = host.layout.open_secrets(app.uid) / "files" / mount.source
    directive = "BindReadOnlyPaths" if mount.read_only else "BindPaths"
    yield directive, f"{quoting.path_word(str(source))}:{quoting.path_word(mount.path)}"


def _memory(spec: ApplicationSpec) -> int | None:
    limit = spec.resources.limits.get("memory")
    return quantity.byte_count(limit) if limit is not None else None


def _limits(spec: ApplicationSpec) -> Iterable[tuple[str, str]]:
    """requests weigh and protect, limits cap. CPUWeight: 100 for one core, as the default of systemd is 100."""
    requests = {**spec.resources.limits, **spec.resources.requests}
    if "cpu" in requests:
        yield "CPUWeight", str(min(max(quantity.millicores(requests["cpu"]) // 10, 1), 10_000))
    if "memory" in requests:
        yield "MemoryLow", str(quantity.byte_count(requests["memory"]))
    if "cpu" in spec.resources.limits:
        # systemd takes hundredths of a percent at the finest; the kernel's quota has a floor of 1 ms in 100 ms.
        yield "CPUQuota", f"{max(quantity.millicores(spec.resources.limits['cpu']), 10) / 10:g}%"
    if (memory := _memory(spec)) is not None:
        yield "MemoryMax", str(memory)
    yield "TasksMax", str(TASKS_MAX)
