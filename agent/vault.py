"""Keeps the sealed secrets of one application in step with what the controller sends."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace

from agent import durable, record, secrets, teardown
from agent.errors import AgentError
from agent.record import Record, Revision
from agent.unit_files import UnitFiles
from agent.units import Identity
from agent.wish import Wish
from agent.workshop import Workshop
from horchestra.apimachinery.desired import SecretData

Notes = dict[str, tuple[str, str]]
"""Conditions that are True: type to (reason, message)."""


class Vault:
    def __init__(self, shop: Workshop, identity: Identity, known: Record, files: UnitFiles) -> None:
        self._shop = shop
        self._identity = identity
        self._record = known
        self._files = files
        self._directory = shop.layout.app(identity.uid)
        self._sealed_from: Mapping[tuple[str, str], SecretData] | None = None
        self.notes: Notes = {}

    async def seal(self, revision: Revision, wish: Wish) -> str:
        """Seal the values for a revision; the name of the directory that holds them. Raises AgentError."""
        last = await self._unsealed()
        if not wish.values_known:
            raise AgentError("SecretsUnknown", "the values of its secrets come with the next word of the controller")
        gathered = secrets.gather(revision.parsed, revision.launch, wish.secrets, last)
        self._note_missing(gathered.missing)
        name = f"secrets-{gathered.bundle.digest(self._record.salt)[:16]}"
        if not (self._directory / name).is_dir():
            building = self._directory / f".{name}.new"
            await asyncio.to_thread(teardown.remove_tree, building)
            await secrets.seal(gathered.bundle, self._record.salt, self._identity.uid, building, self._shop.sealing)
            building.rename(self._directory / name)
            durable.sync_directory(self._directory)
        return name

    async def refresh(self, wish: Wish | None, *, running: bool) -> None:
        """Follow changed values: files at once, variables at the next start. What cannot be used becomes a note."""
        current = self._record.current
        if current is None or not secrets.needed(current.launch):
            self.notes.clear()
            return
        if wish is not None and wish.values_known and wish.secrets != self._sealed_from:
            try:
                await self._follow(current, wish, running)
            except AgentError as error:
                self.notes["SecretsNotUpdated"] = (error.reason, f"{error.message}; the last values stay in use")
            else:
                self.notes.pop("SecretsNotUpdated", None)
            self._sealed_from = wish.secrets
        self._note_restart_required(running)

    async def _follow(self, current: Revision, wish: Wish, running: bool) -> None:
        name = await self.seal(current, wish)
        if name == current.secrets:
            return
        changed = replace(current, secrets=name)
        self._record.current = changed
        await record.save(self._directory, self._record)
        await asyncio.to_thread(self._files.write_rules, changed)
        if running:
            await self._open()
        kept = {name, self._record.previous.secrets if self._record.previous else ""}
        if current.secrets and current.secrets not in kept:
            await asyncio.to_thread(teardown.remove_tree, self._directory / current.secrets)

    async def _unsealed(self) -> secrets.Bundle | None:
        current = self._record.current
        if current is None or not current.secrets or not (self._directory / current.secrets).is_dir():
            return None
        return await secrets.unseal(self._identity.uid, self._directory / current.secrets, self._shop.sealing)

    async def _open(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", str(self._shop.layout.starter), "secrets", self._identity.uid),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate()
        if process.returncode != 0:
            raise AgentError("SecretsUnreadable", errors.decode(errors="replace").strip()[-300:])

    def _note_missing(self, missing: tuple[str, ...]) -> None:
        self.notes.pop("SecretMissing", None)
        if missing:
            text = f"{', '.join(missing)} was deleted; its last values are used. Create it again or change spec"
            self.notes["SecretMissing"] = ("Deleted", text)

    def _note_restart_required(self, running: bool) -> None:
        self.notes.pop("RestartRequired", None)
        directory = self._shop.layout.open_secrets(self._identity.uid)
        with contextlib.suppress(OSError):
            if running and (directory / "digest").read_bytes() != (directory / "started").read_bytes():
                text = "variables from a Secret or ConfigMap changed; they are read at start: restart the application"
                self.notes["RestartRequired"] = ("EnvironmentChanged", text)
