"""The only speaker of D-Bus: typed calls to systemd's manager and a coalesced stream of which units changed.

Source: org.freedesktop.systemd1(5). Low-level messages, no introspection: a call costs one round trip.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from dbus_fast import BusType, Message, MessageType
from dbus_fast.aio import MessageBus

from agent.errors import AgentError

log = logging.getLogger("horchestra.systemd")

_SERVICE = "org.freedesktop.systemd1"
_MANAGER = "org.freedesktop.systemd1.Manager"
_ROOT = "/org/freedesktop/systemd1"
_UNITS = f"{_ROOT}/unit/"
_CALL_SECONDS = 30.0
_RELOAD_SECONDS = 120.0
_JOB_PROBE_SECONDS = 5.0
_QUIET_SECONDS = 0.02  # a restart sends 16 signals in 17 ms: they become one change
EVERYTHING = ""
"""In the change stream: signals may have been lost, look at every unit again."""


class UnitGone(AgentError):
    """The unit file does not exist (any more)."""


@dataclass(frozen=True, slots=True)
class UnitState:
    """What systemd knows of a unit. Times in µs: `*_at` since the epoch, `*_mono` monotonic; 0: never."""

    name: str
    load: str = "not-found"
    active: str = "inactive"
    sub: str = "dead"
    job: int = 0
    invocation: str = ""
    result: str = "success"
    main_pid: int = 0
    exit_code: int = 0
    """CLD_EXITED 1, CLD_KILLED 2, CLD_DUMPED 3; 0 while nothing ended."""
    exit_status: int = 0
    started_at: int = 0
    started_mono: int = 0
    exited_at: int = 0
    active_mono: int = 0
    restarts: int = 0
    needs_reload: bool = False
    drop_ins: tuple[str, ...] = ()
    fragment: str = ""
    control_group: str = ""

    @property
    def running(self) -> bool:
        """exec of the program succeeded and it has not ended (Type=exec)."""
        return self.active in ("active", "reloading", "refreshing")

    @property
    def stopped(self) -> bool:
        """Neither running nor about to by itself."""
        return self.active in ("inactive", "failed") and self.job == 0


def unit_object(name: str) -> str:
    """Object path of a unit: every byte that is not a letter or a (non-leading) digit as _XX."""
    encoded = "".join(
        chr(b) if chr(b).isascii() and (chr(b).isalpha() or (chr(b).isdigit() and i > 0)) else f"_{b:02x}"
        for i, b in enumerate(name.encode())
    )
    return _UNITS + encoded


def unit_of_object(path: str) -> str:
    """The unit's name behind its object path."""
    raw = path.removeprefix(_UNITS).encode()
    return re.sub(rb"_([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), raw).decode(errors="replace")


class Systemd:
    """One connection to the system bus, made again when it breaks. Use from one event loop."""

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._bus: MessageBus | None = None
        self._connecting = asyncio.Lock()
        self._jobs: dict[str, asyncio.Future[str]] = {}
        self._ended: dict[str, str] = {}
        self._changed: set[str] = set()
        self._wake = asyncio.Event()

    async def connect(self) -> None:
        """Connect and subscribe. Raises AgentError SystemdUnreachable."""
        async with self._connecting:
            if self._bus is not None and self._bus.connected:
                return
            try:
                async with asyncio.timeout(_CALL_SECONDS):
                    bus = await MessageBus(bus_address=self._address, bus_type=BusType.SYSTEM).connect()
            except (OSError, TimeoutError, EOFError) as error:
                raise AgentError("SystemdUnreachable", f"cannot reach systemd on the system bus: {error}") from error
            bus.add_message_handler(self._receive)
            self._bus = bus
            for rule in (
                "type='signal',interface='org.freedesktop.DBus.Properties',member='PropertiesChanged',"
                f"path_namespace='{_ROOT}/unit'",
                f"type='signal',interface='{_MANAGER}'",
                f"type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{_SERVICE}'",
            ):
                await self._send(bus, "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus",
                                 "AddMatch", "s", [rule])  # fmt: skip
            await self._send(bus, _SERVICE, _ROOT, _MANAGER, "Subscribe")
            self._note(EVERYTHING)

    async def close(self) -> None:
        if self._bus is not None:
            self._bus.disconnect()
            with contextlib.suppress(Exception):
                await _disconnected(self._bus)

    # Calls

    async def version(self) -> int:
        """Major version of the running systemd: 252."""
        text = str((await self._get(_ROOT, _MANAGER, "Version")).value)
        match = re.search(r"\d+", text)
        return int(match[0]) if match else 0

    async def reload(self) -> None:
        """Make systemd read its unit files again (about 100 ms and more: batch the writes before it)."""
        await self._manager("Reload", seconds=_RELOAD_SECONDS)

    async def start(self, unit: str, *, seconds: float | None = None) -> str:
        """Start and wait for the job: done | failed | dependency | canceled | timeout | skipped | unknown.

        `seconds`: stop waiting after that many seconds (the job goes on) and return "waiting".
        """
        return await self._job("StartUnit", unit, seconds)

    async def stop(self, unit: str, *, seconds: float | None = None) -> str:
        """Stop and wait until it has ended."""
        return await self._job("StopUnit", unit, seconds)

    async def restart(self, unit: str, *, seconds: float | None = None) -> str:
        return await self._job("RestartUnit", unit, seconds)

    async def kill(self, unit: str, signal: int) -> None:
        """Signal every process of the unit."""
        await self._manager("KillUnit", "ssi", [unit, "all", signal])

    async def reset_failed(self, unit: str) -> None:
        with contextlib.suppress(UnitGone):
            await self._manager("ResetFailedUnit", "s", [unit])

    async def state(self, unit: str) -> UnitState:
        """Everything at once about a service or mount; a unit that does not exist has load "not-found"."""
        path = unit_object(unit)
        try:
            general = await self._all(path, f"{_SERVICE}.Unit")
            kind = "Mount" if unit.endswith(".mount") else "Service"
            special = await self._all(path, f"{_SERVICE}.{kind}") if general.get("LoadState") != "not-found" else {}
        except UnitGone:
            return UnitState(unit)
        return _unit_state(unit, general, special)

    async def state_in_memory(self, unit: str) -> UnitState:
        """The same without reading files: "not-found" unless systemd has a reason to keep the unit, as that it is on
        its way or failed. What is idle would be read for each question and dropped again: 6 ms of a template's."""
        try:
            await self._manager("GetUnit", "s", [unit])
        except UnitGone:
            return UnitState(unit)
        return await self.state(unit)

    async def has_read(self, unit: str) -> bool:
        """Whether systemd has the file in memory. Asking makes it look for a file it has never seen (since 247)."""
        try:
            found = await self._get(unit_object(unit), f"{_SERVICE}.Unit", "LoadState")
        except UnitGone:
            return False
        return bool(found.value != "not-found")

    async def list_units(self, patterns: Iterable[str]) -> dict[str, str]:
        """Loaded units that match: name to active state."""
        reply = await self._manager("ListUnitsByPatterns", "asas", [[], list(patterns)])
        return {row[0]: row[3] for row in reply[0]}

    # Changes

    async def changes(self) -> AsyncIterator[frozenset[str]]:
        """Names of units whose properties changed, coalesced; EVERYTHING among them after a lost connection.

        Reconnects by itself and never ends; cancel it.
        """
        while True:
            try:
                await self.connect()
            except AgentError as error:
                log.warning("%s", error)
                await asyncio.sleep(1)
                continue
            bus = self._bus
            assert bus is not None
            lost = asyncio.ensure_future(_disconnected(bus))
            try:
                while not lost.done():
                    woken = asyncio.ensure_future(self._wake.wait())
                    try:
                        await asyncio.wait({woken, lost}, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        woken.cancel()
                    await asyncio.sleep(_QUIET_SECONDS)
                    self._wake.clear()
                    if self._changed:
                        changed, self._changed = frozenset(self._changed), set()
                        yield changed
            finally:
                lost.cancel()
                with contextlib.suppress(BaseException):
                    await lost
            self._fail_jobs()

    def _note(self, unit: str) -> None:
        self._changed.add(unit)
        self._wake.set()

    def _receive(self, message: Message) -> None:
        if message.message_type is not MessageType.SIGNAL:
            return
        path = message.path or ""
        if message.member == "PropertiesChanged" and path.startswith(_UNITS):
            self._note(unit_of_object(path))
        elif message.member == "JobRemoved":
            _, job, unit, result = message.body
            self._finish_job(job, result)
            self._note(unit)
        elif (message.member == "NameOwnerChanged" and message.body[2]) or (
            message.member == "Reloading" and not message.body[0]
        ):
            self._note(EVERYTHING)

    # Jobs

    async def _job(self, member: str, unit: str, seconds: float | None) -> str:
        reply = await self._manager(member, "ss", [unit, "replace"])
        path = reply[0]
        if path in self._ended:  # JobRemoved came before the reply was seen
            return self._ended.pop(path)
        future = self._jobs.setdefault(path, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(seconds):
                while True:
                    done, _ = await asyncio.wait({future}, timeout=_JOB_PROBE_SECONDS)
                    if done:
                        return future.result()
                    if not await self._job_exists(path):
                        return "unknown"
        except TimeoutError:
            return "waiting"
        finally:
            self._jobs.pop(path, None)

    async def _job_exists(self, path: str) -> bool:
        try:
            await self._get(path, f"{_SERVICE}.Job", "State")
        except AgentError:
            return False
        return True

    def _finish_job(self, path: str, result: str) -> None:
        future = self._jobs.get(path)
        if future is not None:
            if not future.done():
                future.set_result(result)
            return
        self._ended[path] = result
        while len(self._ended) > 256:
            del self._ended[next(iter(self._ended))]

    def _fail_jobs(self) -> None:
        for future in self._jobs.values():
            if not future.done():
                future.set_result("unknown")

    # Wire

    async def _manager(
        self, member: str, signature: str = "", body: list[Any] | None = None, seconds: float = _CALL_SECONDS
    ) -> list[Any]:
        return await self._call(_ROOT, _MANAGER, member, signature, body, seconds)

    async def _all(self, path: str, interface: str) -> dict[str, Any]:
        reply = await self._call(path, "org.freedesktop.DBus.Properties", "GetAll", "s", [interface])
        return {name: variant.value for name, variant in reply[0].items()}

    async def _get(self, path: str, interface: str, name: str) -> Any:
        return (await self._call(path, "org.freedesktop.DBus.Properties", "Get", "ss", [interface, name]))[0]

    async def _call(
        self, path: str, interface: str, member: str, signature: str = "", body: list[Any] | None = None,
        seconds: float = _CALL_SECONDS,
    ) -> list[Any]:  # fmt: skip
        await self.connect()
        assert self._bus is not None
        return await self._send(self._bus, _SERVICE, path, interface, member, signature, body, seconds)

    async def _send(
        self, bus: MessageBus, destination: str, path: str, interface: str, member: str, signature: str = "",
        body: list[Any] | None = None, seconds: float = _CALL_SECONDS,
    ) -> list[Any]:  # fmt: skip
        message = Message(destination=destination, path=path, interface=interface, member=member,
                          signature=signature, body=body or [])  # fmt: skip
        try:
            async with asyncio.timeout(seconds):
                reply = await bus.call(message)
        except TimeoutError:
            raise AgentError("SystemdSilent", f"systemd did not answer {member} within {seconds:.0f} s") from None
        except (OSError, EOFError) as error:
            raise AgentError("SystemdUnreachable", f"the system bus broke during {member}: {error}") from error
        if reply is None:
            return []
        if reply.message_type is MessageType.ERROR:
            text = str(reply.body[0] if reply.body else reply.error_name)
            if reply.error_name in (f"{_SERVICE}.NoSuchUnit", "org.freedesktop.DBus.Error.UnknownObject"):
                raise UnitGone("UnitGone", text)
            raise AgentError("SystemdRefused", f"systemd refused {member} {(body or [''])[0]}: {text}")
        return list(reply.body)


async def _disconnected(bus: MessageBus) -> None:
    await bus.wait_for_disconnect()  # type: ignore[no-untyped-call]


def _unit_state(name: str, unit: dict[str, Any], service: dict[str, Any]) -> UnitState:
    return UnitState(
        name=name,
        load=unit.get("LoadState", "not-found"),
        active=unit.get("ActiveState", "inactive"),
        sub=unit.get("SubState", "dead"),
        job=unit.get("Job", (0, ""))[0],
        invocation=bytes(unit.get("InvocationID", b"")).hex(),
        result=service.get("Result", "success"),
        main_pid=service.get("MainPID", 0),
        exit_code=service.get("ExecMainCode", 0),
        exit_status=service.get("ExecMainStatus", 0),
        started_at=service.get("ExecMainStartTimestamp", 0),
        started_mono=service.get("ExecMainStartTimestampMonotonic", 0),
        exited_at=service.get("ExecMainExitTimestamp", 0),
        active_mono=unit.get("ActiveEnterTimestampMonotonic", 0),
        restarts=service.get("NRestarts", 0),
        needs_reload=unit.get("NeedDaemonReload", False),
        drop_ins=tuple(unit.get("DropInPaths", ())),
        fragment=unit.get("FragmentPath", ""),
        control_group=service.get("ControlGroup", ""),
    )
