"""The files on disk that make one application run: units, rules for the start script. Written, checked, compared."""

import asyncio
import contextlib
import hashlib
import time
from pathlib import Path

from agent import durable, marks, starter, units
from agent.record import Record, Revision
from agent.systemd import UnitState
from agent.units import Identity
from agent.workshop import Workshop


class UnitFiles:
    """Of one application. Calls block but for `write`."""

    def __init__(self, shop: Workshop, identity: Identity, record: Record) -> None:
        self._shop = shop
        self._identity = identity
        self._record = record
        self._directory = shop.layout.app(identity.uid)
        self._edited = (0, -1)
        """µs since the epoch: when systemd had read a text by hand that is gone by now."""

    def right(self, revision: Revision, unit: UnitState) -> bool:
        """Whether everything is on disk as rendered, and systemd has read it."""
        return (
            not unit.needs_reload
            and not self._drop_ins(unit)
            and all(self._shop.unit_is_right(file) for file in self._rendered(revision))
            and _holds(self._directory / "start.conf", self._rules(revision))
            and _holds(self._directory / "subpaths", _sub_paths(revision))
        )

    async def write(self, revision: Revision, unit: UnitState) -> None:
        """Write what is not as rendered, and have systemd read it."""
        systemd, names = self._shop.systemd, [file.name for file in self._rendered(revision)]
        unread = not any([await systemd.has_read(name) for name in names])
        edits = await asyncio.to_thread(self._edits, unit)
        await asyncio.to_thread(self._write, revision, unit)
        # A unit that systemd has never seen is read when it is asked for; a reload takes 100 ms, more with every unit.
        if not (unread and all([await systemd.has_read(name) for name in names])):
            await self._shop.reloader.reload()
        if edits and not unit.needs_reload:
            self._edited = (min(edits), time.time_ns() // 1000)

    def write_rules(self, revision: Revision) -> None:
        """Only what the start script reads."""
        durable.write_if_changed(self._directory / "start.conf", self._rules(revision))
        if sub_paths := _sub_paths(revision):
            durable.write_if_changed(self._directory / "subpaths", sub_paths)
        else:
            durable.remove(self._directory / "subpaths")

    def run_edited(self, unit: UnitState) -> bool:
        """Whether the process was started from a text that is not ours, be it still on disk or put right since."""
        if not unit.running or unit.invocation == self._record.invocation or unit.needs_reload:
            return False
        first, last = self._edited
        return first <= unit.started_at <= last or any(moment <= unit.started_at for moment in self._edits(unit))

    def _edits(self, unit: UnitState) -> list[int]:
        """When the texts of the service that are not ours were written; µs since the epoch."""
        edited = self._drop_ins(unit)
        path = self._shop.layout.units / self._identity.unit
        with contextlib.suppress(OSError):
            if not self._is_ours(path.read_bytes()):
                edited.append(path)
        return [path.stat().st_mtime_ns // 1000 for path in edited if path.exists()]

    def _is_ours(self, text: bytes) -> bool:
        """As it was written last; when that is forgotten (a damaged record), whether it starts the same process."""
        written, current = self._record.written.get(self._identity.unit), self._record.current
        if written is None:
            return current is not None and f"\nStartKey={current.launch.key}\n".encode() in text
        return hashlib.sha256(text).hexdigest() == written

    def marks(self) -> marks.Marks:
        """Of everything on disk that a round looks at and nobody tells of."""
        layout, current = self._shop.layout, self._record.current
        paths = marks.of_unit(layout.units, self._identity.unit)
        paths += [layout.units / f"{units.WANTED_BY}.wants" / self._identity.unit]
        paths += [self._directory / name for name in ("start.conf", "subpaths")]
        if current is not None:
            paths += [*marks.of_unit(layout.units, units.mount_unit(current.root, layout)), layout.root(current.root)]
        return marks.take(paths)

    def _write(self, revision: Revision, unit: UnitState) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._shop.layout.root(revision.root).mkdir(parents=True, exist_ok=True)
        self.write_rules(revision)
        for path in self._drop_ins(unit):
            durable.remove(path)
        for file in self._rendered(revision):
            self._shop.write_unit(file)
            self._record.written[file.name] = hashlib.sha256(file.text.encode()).hexdigest()

    def _rendered(self, revision: Revision) -> list[units.UnitFile]:
        root = units.Root(revision.root, revision.layers)
        host = self._shop.host
        return units.render(self._identity, revision.parsed, revision.launch, root, host, revision.stop_signal)

    def _rules(self, revision: Revision) -> bytes:
        spec = revision.parsed
        unlimited = 0 if spec.restartPolicy == "Never" else -1
        return starter.StartRules(
            unit=self._identity.unit,
            policy=spec.restartPolicy,
            retries=unlimited if spec.backoffLimit is None else spec.backoffLimit,
            deadline=spec.activeDeadlineSeconds or 0,
            sealed=self._shop.sealing if revision.secrets else "",
            secrets=revision.secrets,
        ).text()

    def _drop_ins(self, unit: UnitState) -> list[Path]:
        """Drop-ins for this unit alone, made by hand (systemctl edit, systemctl set-property)."""
        return [path for path in map(Path, unit.drop_ins) if path.parent.name == f"{self._identity.unit}.d"]


def _sub_paths(revision: Revision) -> bytes:
    return "".join(
        f"{index} {mount.source} ./{'/'.join(part for part in mount.sub.split('/') if part not in ('', '.'))}/.\n"
        for index, mount in enumerate(revision.launch.mounts)
        if mount.kind == "pv" and mount.sub
    ).encode()


def _holds(path: Path, data: bytes) -> bool:
    """A file that is not there holds nothing."""
    try:
        return path.read_bytes() == data
    except FileNotFoundError:
        return not data
    except OSError:
        return False
