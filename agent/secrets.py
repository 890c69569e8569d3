"""Secret values on the node: sealed on disk, opened into memory at each start, never anywhere else in the clear.

The bundle of an application is a tar: `env` in the syntax of EnvironmentFile=, `files/<source>/<key>` for mounts. It is
sealed in pieces by systemd-creds (which takes 1 MiB at most) or, where that does not work, kept in files that only root
reads. The script of agent.starter opens it without the agent.
"""

import asyncio
import base64
import hashlib
import io
import re
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agent import durable
from agent.errors import AgentError
from agent.launch import Launch
from horchestra.apimachinery.desired import SecretData
from horchestra.kinds.application import ApplicationSpec

Sealing = Literal["credential", "plain"]
_PIECE = 512 << 10
_KEY = re.compile(r"(?!\.\.)[-._a-zA-Z0-9]{1,253}")


@dataclass(frozen=True, slots=True)
class Bundle:
    """Values for one application: variables, and files by source (`secret.NAME`) and key."""

    environment: dict[str, str] = field(default_factory=dict, repr=False)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict, repr=False)

    def digest(self, salt: str) -> str:
        return hashlib.sha256(salt.encode() + _tar(self, "")).hexdigest()

    def environment_digest(self, salt: str) -> str:
        return hashlib.sha256(salt.encode() + environment_file(self.environment)).hexdigest()


@dataclass(frozen=True, slots=True)
class Gathered:
    bundle: Bundle
    missing: tuple[str, ...]
    """Secrets and ConfigMaps that are gone, whose last values are used: `secret "db"`."""


def needed(launch: Launch) -> bool:
    return bool(launch.secret_environment) or any(mount.kind == "files" for mount in launch.mounts)


def gather(
    spec: ApplicationSpec, launch: Launch, known: Mapping[tuple[str, str], SecretData], last: Bundle | None
) -> Gathered:
    """The bundle of a launch. `known`: (Secret|ConfigMap, name) in the application's namespace; `last`: the bundle that
    is sealed now, for objects that were deleted meanwhile.

    Raises AgentError SecretNotFound, SecretKeyNotFound, InvalidSecret.
    """
    optional = {
        variable.name
        for variable in spec.environment()
        if variable.valueFrom
        and (selector := variable.valueFrom.secretKeyRef or variable.valueFrom.configMapKeyRef)
        and selector.optional
    }
    missing: dict[str, None] = {}
    environment: dict[str, str] = {}
    for variable, kind, name, key in launch.secret_environment:
        value = _value(known.get((kind, name)), key)
        if value is None and last is not None and variable in last.environment:
            missing[f'{kind.lower()} "{name}"'] = None
            environment[variable] = last.environment[variable]
        elif value is not None:
            environment[variable] = _text(value, kind, name, key)
        elif variable not in optional:
            raise _not_found(known.get((kind, name)), kind, name, key)
    files: dict[str, dict[str, bytes]] = {}
    for mount in launch.mounts:
        if mount.kind != "files":
            continue
        prefix, _, name = mount.source.partition(".")
        kind = "Secret" if prefix == "secret" else "ConfigMap"
        data = known.get((kind, name))
        if data is not None and not data.missing:
            files[mount.source] = {_file_name(key, kind, name): base64.b64decode(v) for key, v in data.data.items()}
        elif last is not None and mount.source in last.files:
            missing[f'{kind.lower()} "{name}"'] = None
            files[mount.source] = last.files[mount.source]
        else:
            raise _not_found(None, kind, name, "")
    return Gathered(Bundle(environment, files), tuple(missing))


def environment_file(values: Mapping[str, str]) -> bytes:
    """EnvironmentFile= syntax: in double quotes everything stands for itself but `\\`, `"`, `$` and backquote."""
    lines = []
    for name, value in values.items():
        escaped = re.sub(r'([\\"$`])', r"\\\1", value)
        lines.append(f'{name}="{escaped}"\n')
    return "".join(lines).encode()


async def seal(bundle: Bundle, salt: str, uid: str, directory: Path, sealing: Sealing) -> None:
    """Write the bundle sealed into the new `directory`; durable when it returns. Raises AgentError SecretsNotSealed."""
    data = _tar(bundle, bundle.environment_digest(salt))
    directory.mkdir(mode=0o700, parents=True)
    for index, start in enumerate(range(0, len(data), _PIECE)):
        piece = data[start : start + _PIECE]
        if sealing == "credential":
            piece = await _creds("encrypt", "--with-key=host", uid, piece)
        await asyncio.to_thread(durable.write, directory / f"{index:04d}", piece)
    await asyncio.to_thread(durable.sync_directory, directory.parent)


async def unseal(uid: str, directory: Path, sealing: Sealing) -> Bundle:
    """Read a sealed bundle back. Raises AgentError SecretsUnreadable."""
    pieces = []
    for path in sorted(directory.glob("[0-9]*")):
        piece = await asyncio.to_thread(path.read_bytes)
        pieces.append(await _creds("decrypt", "", uid, piece) if sealing == "credential" else piece)
    try:
        return _untar(b"".join(pieces))
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise AgentError("SecretsUnreadable", f"the sealed secrets in {directory} cannot be read") from error


async def can_seal() -> bool:
    """Whether systemd-creds works here: it needs systemd 250 and a host key it can write."""
    if shutil.which("systemd-creds") is None:
        return False
    try:
        sealed = await _creds("encrypt", "--with-key=host", "probe", b"probe")
        return await _creds("decrypt", "", "probe", sealed) == b"probe"
    except AgentError:
        return False


async def _creds(verb: str, option: str, uid: str, data: bytes) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *("systemd-creds", verb, *([option] if option else []), f"--name=horchestra-{uid}", "-", "-"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate(data)
    if process.returncode != 0:
        said = errors.decode(errors="replace").strip()[-300:]
        raise AgentError("SecretsNotSealed", f"systemd-creds {verb} failed: {said}")
    return output


def _value(data: SecretData | None, key: str) -> bytes | None:
    if data is None or data.missing or key not in data.data:
        return None
    return base64.b64decode(data.data[key])


def _text(value: bytes, kind: str, name: str, key: str) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise AgentError(
            "InvalidSecret",
            f'{kind.lower()} "{name}": the value of {key!r} is not text (UTF-8 without NUL) and cannot be a variable; '
            "mount it as a file",
        )
    return text


def _file_name(key: str, kind: str, name: str) -> str:
    if not _KEY.fullmatch(key) or key == ".":
        raise AgentError("InvalidSecret", f'{kind.lower()} "{name}": the key {key[:60]!r} cannot be a file name')
    return key


def _not_found(data: SecretData | None, kind: str, name: str, key: str) -> AgentError:
    if data is None or data.missing:
        return AgentError(f"{kind}NotFound", f'{kind.lower()} "{name}" not found; create it to go on')
    return AgentError(f"{kind}KeyNotFound", f'{kind.lower()} "{name}" has no key {key!r}; add it to go on')


def _tar(bundle: Bundle, digest: str) -> bytes:
    """Always the same bytes for the same values. `complete` comes last and says that nothing was cut off."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, "env", environment_file(bundle.environment), 0o600)
        _add(tar, "digest", digest.encode(), 0o600)
        _add_directory(tar, "files", 0o755)
        for source in sorted(bundle.files):
            _add_directory(tar, f"files/{source}", 0o755)
            for key, value in sorted(bundle.files[source].items()):
                _add(tar, f"files/{source}/{key}", value, 0o444)
        _add(tar, "complete", b"", 0o600)
    return output.getvalue()


def _untar(data: bytes) -> Bundle:
    files: dict[str, dict[str, bytes]] = {}
    environment: dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.getmember("complete")
        for member in tar.getmembers():
            parts = member.name.split("/")
            if member.isdir() and len(parts) == 2:
                files[parts[1]] = {}
            content = tar.extractfile(member)
            if content is not None and len(parts) == 3:
                files[parts[1]][parts[2]] = content.read()
            elif content is not None and member.name == "env":
                environment = _parse_environment(content.read().decode())
    return Bundle(environment, files)


def _parse_environment(text: str) -> dict[str, str]:
    pairs = re.findall(r'^([A-Za-z_][A-Za-z0-9_]*)="((?:[^\\"]|\\.)*)"\n', text, flags=re.MULTILINE | re.DOTALL)
    return {name: re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL) for name, value in pairs}


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))


def _add_directory(tar: tarfile.TarFile, name: str, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    tar.addfile(info)


def decoded(data: SecretData, key: str) -> bytes:
    """The value of a key that is there."""
    return base64.b64decode(data.data[key])
