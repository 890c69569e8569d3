"""Who an application runs as: the image's USER by the image's own accounts, and the host accounts that systemd needs.

systemd looks User= and Group= up on the host before it enters the root, also when they are numbers; so each uid and
gid gets an account of ours (hzr-UID) unless the host has one.
"""

import asyncio
import grp
import json
import pwd
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from agent import durable
from agent.errors import AgentError
from agent.images.view import ImageView
from agent.layout import Layout
from horchestra.kinds.application import SecurityContext

ACCOUNT_PREFIX = "hzr-"
OWN_RANGE = range(1_879_100_000, 1_879_200_000)
"""Uids the agent gives away: above what containers, subordinate ids and DynamicUser= take (uid ranges of systemd)."""
_MAX_ID = 2**32 - 2
_MAX_FILE = 1 << 20
_NUMBER = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Account:
    """The user of a process; `name` is empty when the image does not name the uid."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    name: str = ""
    home: str = "/"


def resolve(view: ImageView, image_user: str, security: SecurityContext, own_uid: Callable[[], int]) -> Account:
    """runAsUser, else the image's USER, else root; `own_uid` gives a uid to who must not be root but names no user.

    Raises AgentError UnknownUser, UnknownGroup, RunAsRootRefused.
    """
    user, colon, group = image_user.partition(":")
    must_not = security.runAsNonRoot or security.profile == "sandbox"
    if security.runAsUser is not None:
        user, colon, group = str(security.runAsUser), "", ""
    elif not user and must_not:
        uid = own_uid()
        account = Account(uid, uid)
        return _with_groups(account, security)
    account = _find_user(view, user or "0")
    if colon and group:
        account = Account(account.uid, _find_group(view, group), (), account.name, account.home)
    elif account.name:
        groups = tuple(sorted({gid for _, gid, members in _groups(view) if account.name in members} - {account.gid}))
        account = Account(account.uid, account.gid, groups, account.name, account.home)
    if must_not and account.uid == 0:
        raise AgentError(
            "RunAsRootRefused",
            "the image runs as root, which "
            + ("runAsNonRoot forbids" if security.runAsNonRoot else "the profile sandbox forbids")
            + "; set securityContext.runAsUser",
        )
    return _with_groups(account, security)


def _with_groups(account: Account, security: SecurityContext) -> Account:
    gid = account.gid if security.runAsGroup is None else security.runAsGroup
    groups = set(account.groups) | ({security.fsGroup} if security.fsGroup is not None else set())
    return Account(account.uid, gid, tuple(sorted(groups - {gid})), account.name, account.home)


def _find_user(view: ImageView, user: str) -> Account:
    number = _id(user)
    for name, uid, gid, home in _accounts(view):
        if name == user or uid == number:
            return Account(uid, gid, (), name, home if home.startswith("/") else "/")
    if number is None:
        raise AgentError(
            "UnknownUser",
            f'the image runs as "{user}", which its /etc/passwd does not name; set securityContext.runAsUser',
        )
    return Account(number, 0, (), "root" if number == 0 else "", "/")


def _find_group(view: ImageView, group: str) -> int:
    number = _id(group)
    for name, gid, _ in _groups(view):
        if name == group:
            return gid
    if number is None:
        raise AgentError(
            "UnknownGroup",
            f'the image runs as group "{group}", which its /etc/group does not name; set securityContext.runAsGroup',
        )
    return number


def _id(text: str) -> int | None:
    if not _NUMBER.fullmatch(text):
        return None
    if int(text) > _MAX_ID:
        raise AgentError("UnknownUser", f"{text} is no user or group id; the largest is {_MAX_ID}")
    return int(text)


def _accounts(view: ImageView) -> Iterable[tuple[str, int, int, str]]:
    for fields in _lines(view, "/etc/passwd", 6):
        if _NUMBER.fullmatch(fields[2]) and _NUMBER.fullmatch(fields[3]):
            yield fields[0], int(fields[2]), int(fields[3]), fields[5]


def _groups(view: ImageView) -> Iterable[tuple[str, int, list[str]]]:
    for fields in _lines(view, "/etc/group", 4):
        if _NUMBER.fullmatch(fields[2]):
            yield fields[0], int(fields[2]), fields[3].split(",")


def _lines(view: ImageView, path: str, least: int) -> Iterable[list[str]]:
    """Fields of an accounts file; lines that are none are passed over, as libc does. A missing file has none."""
    try:
        text = view.read(path, _MAX_FILE).decode("utf-8", "replace")
    except FileNotFoundError:
        return
    for line in text.split("\n"):
        fields = line.split(":")
        if len(fields) >= least and fields[0] and all(0 <= int(f) <= _MAX_ID for f in fields[2:3] if f.isdecimal()):
            yield fields


class Identities:
    """Uids from the agent's own range, by namespace/name, kept on disk and never given to another application."""

    def __init__(self, layout: Layout) -> None:
        self._path = layout.identities
        self._lock = threading.Lock()

    def uid(self, namespace: str, name: str) -> int:
        """The application's uid, the same for as long as the node keeps its state. Raises AgentError OutOfUids."""
        with self._lock:
            return self._uid(f"{namespace}/{name}")

    def _uid(self, key: str) -> int:
        known: dict[str, int] = {}
        if self._path.exists():
            known = _given(self._path)
        if key not in known:
            taken = set(known.values())
            free = next((uid for uid in OWN_RANGE if uid not in taken and not _host_user(uid)), None)
            if free is None:
                raise AgentError("OutOfUids", f"all {len(OWN_RANGE)} user ids of {self._path} are given away")
            known[key] = free
            durable.write(self._path, json.dumps(known, indent=1, sort_keys=True).encode())
        return known[key]


def _given(path: Path) -> dict[str, int]:
    """Raises AgentError StateUnreadable: a uid given twice would open one application's volumes to another."""
    try:
        return TypeAdapter(dict[str, int]).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        text = f"{path}, the user ids given to applications, cannot be read ({type(error).__name__}); restore it"
        raise AgentError("StateUnreadable", text) from error


def host_account(uid: int) -> str | None:
    """The host's own account of this uid, one of ours not counted."""
    name = _host_user(uid)
    return name if name is not None and not name.startswith(ACCOUNT_PREFIX) else None


def missing_accounts(account: Account) -> list[str]:
    """Lines of sysusers.d(5) for what the host lacks."""
    lines = [f"g {ACCOUNT_PREFIX}{gid} {gid}" for gid in (account.gid, *account.groups) if not _has_group(gid)]
    if _host_user(account.uid) is None:
        lines.append(f'u {ACCOUNT_PREFIX}{account.uid} {account.uid}:{account.gid} "Horchestra application" /')
    return lines


class HostAccounts:
    """Makes the accounts; one at a time, for the password file has one lock."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def ensure(self, account: Account) -> None:
        """Raises AgentError AccountNotMade."""
        async with self._lock:
            lines = await asyncio.to_thread(missing_accounts, account)
            if not lines:
                return
            process = await asyncio.create_subprocess_exec(
                "systemd-sysusers", "-", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            output, _ = await process.communicate(("\n".join(lines) + "\n").encode())
            missing = await asyncio.to_thread(missing_accounts, account)
            if process.returncode != 0 or missing:
                said = output.decode(errors="replace").strip()[-400:]
                raise AgentError("AccountNotMade", f"systemd-sysusers could not make {'; '.join(lines)}: {said}")


def _host_user(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return None


def _has_group(gid: int) -> bool:
    try:
        grp.getgrgid(gid)
    except (KeyError, OverflowError):
        return False
    return True
