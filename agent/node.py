"""The node's runtime, as the session sees it: takes desired states, gives reports; knows nothing of connections."""

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from agent import durable, facts, journal, probes, starter, teardown, units, wish
from agent.errors import AgentError
from agent.images.mirrors import RegistryConfig
from agent.images.registry import RegistryGates
from agent.images.store import ImageStore
from agent.keeper import Keeper
from agent.layout import Layout
from agent.reconciler import Reconciler
from agent.systemd import Systemd
from agent.users import HostAccounts, Identities
from agent.volumes import Volumes
from agent.workshop import Reloader, Workshop
from horchestra.apimachinery.desired import DesiredState, LogRequest, Removal, SecretData
from horchestra.kinds.application import Application, ApplicationStatus
from horchestra.kinds.persistentvolume import PersistentVolume
from proto.node_pb2 import (
    Acknowledgement,
    AgentMessage,
    ApplicationReport,
    EventReport,
    NodeReport,
    StatusReport,
)

log = logging.getLogger("horchestra.node")

_MAX_EVENTS = 256
_FACTS_SECONDS = 30.0
_SIZES_SECONDS = 60.0
_IMAGES_SECONDS = 900.0
_PASSING_SECONDS = 0.5
"""What an application goes through on its way is told when it lasts: after a report the next may have to wait."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """`pulls`: images pulled at the same time."""

    node: str
    layout: Layout = field(default_factory=Layout)
    registry: RegistryConfig = field(default_factory=RegistryConfig)
    pulls: int = 3
    bus_address: str | None = None


class NodeRuntime:
    """Call `start`, then let `run` live for as long as the agent does; everything else works meanwhile."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._layout = config.layout
        self._desired = DesiredState()
        self._lineage, self._digest = "", ""
        self._changed: dict[str, float] = {}
        """When the status of an application (uid) is to be told, by the loop's clock."""
        self._events: deque[EventReport] = deque(maxlen=_MAX_EVENTS)
        self._removed: list[str] = []
        self._node_report: NodeReport | None = None
        self._wake = asyncio.Event()
        self._volumes_wake = asyncio.Event()
        self._sizes: dict[str, int] = {}
        self._complaints: deque[str] = deque(maxlen=_MAX_EVENTS)

    async def start(self) -> None:
        """Look at the host, take up what is on its disk. Raises AgentError SystemdUnreachable."""
        systemd = Systemd(self._config.bus_address)
        await systemd.connect()
        self._layout.state.mkdir(parents=True, exist_ok=True)
        # Not for other users: set-uid programs of images and volumes must not be within their reach.
        self._layout.state.chmod(0o700)
        try:
            if await asyncio.to_thread(starter.install, self._layout):
                await systemd.reload()
        except OSError as error:
            log.error("the start script could not be written: %s; applications go on with the one that is there", error)
        self._volumes = await asyncio.to_thread(Volumes, self._layout)
        self._shop = Workshop(
            node=self._config.node,
            layout=self._layout,
            systemd=systemd,
            reloader=Reloader(systemd),
            store=await asyncio.to_thread(_image_store, self._layout),
            registry=self._config.registry,
            gates=RegistryGates(),
            pulls=asyncio.Semaphore(self._config.pulls),
            volumes=self._volumes,
            accounts=HostAccounts(),
            identities=Identities(self._layout),
            abilities=await probes.probe(await systemd.version()),
            boot=facts.boot_id(),
            tell=self._tell,
            changed=self._note,
            sharing=self._sharing,
        )
        self._reconciler = Reconciler(self._shop)
        self._reconciler.load()
        await teardown.reap(self._shop, [keeper.record for keeper in self._reconciler.keepers.values()])
        await self._look_at_host()
        await self._take_up()

    async def run(self) -> None:
        """Until cancelled: keepers, change stream, facts, sizes."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._reconciler.run())
                tasks.create_task(self._watch_host())
                tasks.create_task(self._measure_volumes())
                tasks.create_task(self._remove_volumes())
                tasks.create_task(self._collect_images())
        finally:
            self._shop.store.close()
            await self._shop.systemd.close()

    # The session's side

    async def apply(self, desired: DesiredState, lineage: str, revision: int, digest: str) -> None:
        """Make `desired` the truth of this node; it is on disk when this returns. The session has judged its age: after
        an accepted restore an older revision comes rightly."""
        if lineage == self._lineage and digest == self._digest:
            return
        stored = {"lineage": lineage, "revision": revision, "digest": digest, "desired": _without_values(desired)}
        await asyncio.to_thread(durable.write, self._layout.desired, json.dumps(stored).encode())
        self._lineage, self._digest = lineage, digest
        self._desired = desired
        await self._act(values_known=True)

    async def preview(self, desired: DesiredState) -> str:
        """One sentence of what `desired` would change here."""
        here = self._reconciler.keepers
        wanted = {str(meta.get("uid", "")): meta for meta in map(_meta, desired.applications)}
        names = {uid: f"{keeper.identity.namespace}/{keeper.identity.name}" for uid, keeper in here.items()}
        new = [f"{m.get('namespace', '')}/{m.get('name', '')}" for uid, m in wanted.items() if uid not in here]
        changed = [
            names[uid] for uid, m in wanted.items() if uid in here and here[uid].generation != m.get("generation")
        ]
        removed = [names[removal.uid] for removal in desired.removals if removal.uid in here]
        orphaned = [names[uid] for uid in here if uid not in wanted and names[uid] not in removed]
        parts = [
            f"{verb} {', '.join(sorted(items))}"
            for verb, items in (
                ("start", new), ("change", changed), ("remove", removed), ("keep but no longer manage", orphaned),
            )
            if items
        ]  # fmt: skip
        return "would " + "; ".join(parts) if parts else "would change nothing"

    def snapshot(self) -> list[ApplicationReport]:
        """Every application on the node, orphans included."""
        return [self._report(keeper) for keeper in self._reconciler.keepers.values()]

    async def changes(self) -> AsyncIterator[AgentMessage]:
        """What is new: statuses, events, node reports, removals done. One reader at a time."""
        while True:
            self._wake.clear()
            while (message := self._next_message()) is not None:
                yield message
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(self._changed.values(), default=None)):
                    await self._wake.wait()

    def logs(self, request: LogRequest) -> AsyncGenerator[bytes, None]:
        """Lines of an application's journal. Raises AgentError NotFound, NoPreviousProcess, BadLogRequest."""
        if request.uid not in self._reconciler.keepers:
            raise AgentError("NotFound", f"{request.namespace}/{request.name} is not on this node")
        invocation = ""
        if request.previous:
            invocation = starter.read_starts(self._layout.app(request.uid)).previous
            if not invocation:
                raise AgentError("NoPreviousProcess", f"{request.namespace}/{request.name} was not restarted yet")
        return journal.read(request, lambda: self._is_over(request.uid), invocation)

    def _is_over(self, uid: str) -> bool:
        """Nothing more will be written: removed, or a finished job."""
        if uid not in self._reconciler.keepers:
            return True
        return starter.read_finished(self._layout.app(uid)) is not None

    # Inside

    async def _take_up(self) -> None:
        """Go on with the desired state on disk, without the values of secrets, until the controller speaks."""
        try:
            stored = json.loads(self._layout.desired.read_bytes())
            desired = DesiredState.model_validate(stored["desired"])
            self._desired, self._lineage = desired, str(stored["lineage"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.error("%s cannot be read (%s): the node goes on with its records", self._layout.desired, error)
            return
        await self._act(values_known=False)

    async def _act(self, *, values_known: bool) -> None:
        """Tell the keepers what is wanted, and what must go."""
        desired = self._desired
        removals = {removal.uid for removal in desired.removals}
        volumes = await self._make_volumes(desired, removals)
        wishes = {}
        for raw in desired.applications:
            try:
                application = Application.model_validate(raw)
            except ValidationError as error:
                self._refuse(raw, error)
                continue
            meta = application.metadata
            if meta.uid in removals:
                continue
            wishes[meta.uid] = wish.of_application(application, desired, volumes, self._lineage, values_known)
        self._reconciler.want(wishes)
        for removal in desired.removals:
            if removal.kind == "Application" and self._reconciler.remove(removal):
                self._acknowledge(removal.uid)
        self._volumes_wake.set()

    async def _make_volumes(self, desired: DesiredState, removals: set[str]) -> dict[str, PersistentVolume]:
        """The directories of all volumes; by name those that applications may mount."""
        volumes = {}
        for raw in desired.volumes:
            try:
                volume = PersistentVolume.model_validate(raw)
            except ValidationError as error:
                self._refuse(raw, error)
                continue
            if volume.metadata.uid not in removals:
                volumes[volume.metadata.name] = volume
        known = {_meta(raw).get("uid", "") for raw in desired.volumes}
        for problem in await asyncio.to_thread(self._match_volumes, list(volumes.values()), known):
            self._complain(problem)
        return volumes

    def _match_volumes(self, wanted: list[PersistentVolume], known: set[str]) -> list[AgentError]:
        """Make and adopt what is wanted, note what no state names any more. Blocks."""
        errors = []
        for uid in self._volumes.all().keys() - known:
            self._volumes.retire(uid)
        for volume in wanted:
            try:
                self._volumes.ensure(volume, self._lineage)
            except AgentError as error:
                errors.append(error)
        return errors

    def _complain(self, error: AgentError) -> None:
        """An Event about the node, once for each text."""
        if str(error) in self._complaints:
            return
        self._complaints.append(str(error))
        log.warning("%s", error)
        self._tell("", "", "", "Warning", error.reason, error.message)

    def _refuse(self, raw: dict[str, Any], error: ValidationError) -> None:
        """An object this version of the agent cannot read: what runs of it goes on."""
        meta = {key: str(value) for key, value in _meta(raw).items()}
        first = error.errors()[0]
        text = f"this agent cannot read {'.'.join(map(str, first['loc']))}: {first['msg']}; update the agent"
        log.error("%s/%s: %s", meta.get("namespace"), meta.get("name"), text)
        self._tell(meta.get("namespace", ""), meta.get("name", ""), meta.get("uid", ""), "Warning", "Unreadable", text)

    async def _remove_volumes(self) -> None:
        """Removals of volumes, again and again until nothing mounts them."""
        while True:
            self._volumes_wake.clear()
            pending = [removal for removal in self._desired.removals if removal.kind == "PersistentVolume"]
            waiting = False
            for removal in pending:
                waiting |= not await self._remove_volume(removal)
            self._report_volumes()
            try:
                async with asyncio.timeout(2.0 if waiting else None):
                    await self._volumes_wake.wait()
            except TimeoutError:
                continue

    async def _remove_volume(self, removal: Removal) -> bool:
        users = [keeper for keeper in self._reconciler.keepers.values() if removal.uid in _mounts(keeper)]
        if users:
            return False
        try:
            if removal.delete_data:
                await asyncio.to_thread(self._volumes.delete, removal.uid, self._lineage)
            else:
                await asyncio.to_thread(self._volumes.retire, removal.uid)
        except AgentError as error:
            self._complain(error)
            return False
        self._acknowledge(removal.uid)
        return True

    async def _collect_images(self) -> None:
        """Now and then remove what no kept revision needs."""
        while True:
            await asyncio.sleep(_IMAGES_SECONDS)
            records = [keeper.record for keeper in self._reconciler.keepers.values()]
            keep = {digest for known in records for digest in known.images}
            keep |= {r.digest for known in records for r in (known.current, known.previous) if r is not None}
            if gone := await self._shop.collect_images(keep):
                log.info("removed %d images that nothing uses: %s", len(gone), ", ".join(gone))

    def _sharing(self, uid: str, user: int) -> list[str]:
        return [
            f"{keeper.identity.namespace}/{keeper.identity.name}"
            for other, keeper in self._reconciler.keepers.items()
            if other != uid and keeper.record.current and keeper.record.current.launch.account.uid == user
        ]

    # Reports

    def _note(self, uid: str) -> None:
        keeper = self._reconciler.keepers.get(uid)
        if keeper is None or keeper.removed:
            if keeper is None and any(removal.uid == uid for removal in self._desired.removals):
                self._acknowledge(uid)
            self._volumes_wake.set()
            return
        due = asyncio.get_running_loop().time() + (_PASSING_SECONDS if _passes(keeper.status) else 0.0)
        self._changed[uid] = min(due, self._changed.get(uid, due))
        self._wake.set()

    def _acknowledge(self, uid: str) -> None:
        self._removed.append(uid)
        self._wake.set()

    def _tell(self, namespace: str, name: str, uid: str, type: str, reason: str, message: str) -> None:
        self._events.append(
            EventReport(namespace=namespace, name=name, uid=uid, type=type, reason=reason, message=message)
        )
        self._wake.set()

    def _next_message(self) -> AgentMessage | None:
        if self._removed:
            removed, self._removed = self._removed, []
            return AgentMessage(acknowledgement=Acknowledgement(removed=removed))
        now = asyncio.get_running_loop().time()
        if uids := [uid for uid, due in self._changed.items() if due <= now]:
            for uid in uids:
                del self._changed[uid]
            keepers = [self._reconciler.keepers[uid] for uid in uids if uid in self._reconciler.keepers]
            return AgentMessage(status=StatusReport(applications=[self._report(keeper) for keeper in keepers]))
        if self._node_report is not None:
            report, self._node_report = self._node_report, None
            return AgentMessage(node=report)
        if self._events:
            return AgentMessage(event=self._events.popleft())
        return None

    def _report(self, keeper: Keeper) -> ApplicationReport:
        return ApplicationReport(
            namespace=keeper.identity.namespace,
            name=keeper.identity.name,
            uid=keeper.identity.uid,
            generation=keeper.generation,
            invocation_id=keeper.unit.invocation,
            status_json=keeper.status.model_dump_json(exclude_none=True).encode(),
            orphaned=keeper.wish is None and keeper.removal is None,
        )

    # The host

    async def _watch_host(self) -> None:
        while True:
            await asyncio.sleep(_FACTS_SECONDS)
            await self._look_at_host()

    async def _look_at_host(self) -> None:
        status = await asyncio.to_thread(facts.node_status, self._shop.abilities, self._layout.state)
        addresses = tuple(a["address"] for a in status["addresses"] if a["type"] == "InternalIP")
        if addresses != self._shop.addresses:
            self._shop.addresses = addresses
            for keeper in self._reconciler.keepers.values():
                keeper.poke()
        data = json.dumps(status, sort_keys=True).encode()
        if data != self._node_json:
            self._node_json = data
            self._send_node(NodeReport(node_json=data))

    _node_json = b""
    _volumes_json = b""

    async def _measure_volumes(self) -> None:
        """Walking every file of every volume is work: at most half a percent of the time."""
        while True:
            began = time.monotonic()
            self._sizes = await asyncio.to_thread(self._volumes.sizes)
            self._report_volumes()
            await asyncio.sleep(max(_SIZES_SECONDS, 200 * (time.monotonic() - began)))

    def _report_volumes(self) -> None:
        used = {uid for keeper in self._reconciler.keepers.values() for uid in _mounts(keeper)}
        reports = [report.model_dump() for report in self._volumes.report(used, self._sizes)]
        data = json.dumps(reports).encode()
        if data != self._volumes_json:
            self._volumes_json = data
            self._send_node(NodeReport(volumes_json=data))

    def _send_node(self, report: NodeReport) -> None:
        if self._node_report is None:
            self._node_report = report
        else:
            self._node_report.MergeFrom(report)
        self._wake.set()


def _image_store(layout: Layout) -> ImageStore:
    return ImageStore(layout.state, in_use=units.layers_in_use(layout))


def _meta(raw: dict[str, Any]) -> dict[str, Any]:
    """Metadata of an object that nobody has checked."""
    meta = raw.get("metadata")
    return meta if isinstance(meta, dict) else {}


def _passes(status: ApplicationStatus) -> bool:
    """A step on the way to something else, if all goes well."""
    return status.phase in ("Pulling", "Starting") or status.reason == "Preparing"


def _mounts(keeper: Keeper) -> set[str]:
    """Uids of the volumes that an application mounts, or would go back to."""
    revisions = (keeper.record.current, keeper.record.previous)
    return {mount.source for r in revisions if r is not None for mount in r.launch.mounts if mount.kind == "pv"}


def _without_values(desired: DesiredState) -> dict[str, Any]:
    """For the disk: which secrets there are, not what is in them."""
    stripped = [SecretData(**{**secret.model_dump(), "data": {}}) for secret in desired.secrets]
    return desired.model_copy(update={"secrets": stripped}).model_dump(mode="json")
