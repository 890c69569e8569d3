"""What deleting does: two phases with finalizers, holds, and owners with their dependents.

Everything that follows from a deletion happens in its transaction, so no state in between is ever seen or stored.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import pydantic_core

from horchestra.apimachinery.admission import SYSTEM

from .admission import now
from .entry import Entry, Key
from .options import DeleteOptions, Propagation
from .state import held_by, lens_of

if TYPE_CHECKING:
    from .transaction import Transaction

IN_USE = "orch.ks-tool.dev/in-use"
"""On a Terminating object that others hold (Reference.holds)."""
FOREGROUND = "foregroundDeletion"
"""On a Terminating object that waits for its dependents. Name fixed by Kubernetes."""
ORPHAN = "orphan"
"""Asks that dependents be kept. Name fixed by Kubernetes."""
Warnings = list[str]
_NAMED = 5
"""Users named in a warning before it only counts."""


class Deletion:
    """The part of a transaction that deletes."""

    def __init__(self, transaction: Transaction) -> None:
        self._t = transaction
        self._state = transaction.state
        self._queue: deque[Key] = deque()
        """Terminating objects that may be able to go now."""
        self._collectable: deque[Key] = deque()
        """Dependents of an owner that went."""
        self._waiting: dict[str, Entry] = {}
        """By uid, objects that were found to wait for their dependents."""
        self._last: dict[str, Entry] = {}
        """By uid, the newest version made in this transaction."""

    def begin(self, current: Entry, options: DeleteOptions, warnings: Warnings) -> Entry:
        """Marks the object; drain() removes it when nothing keeps it."""
        obj = pydantic_core.from_json(current.body)
        meta = obj["metadata"]
        finalizers = list(meta.get("finalizers") or ())
        propagation = options.propagation or (
            "Orphan" if ORPHAN in finalizers else "Foreground" if FOREGROUND in finalizers else "Background"
        )
        finalizers = [f for f in finalizers if f not in (ORPHAN, FOREGROUND, IN_USE)]  # what is due is put back
        holders = self._users(current, warnings)
        if holders:
            finalizers.append(IN_USE)
        dependents = self._state.dependents(current.uid)
        if propagation == "Foreground" and dependents:
            finalizers.append(FOREGROUND)
        meta.setdefault("deletionTimestamp", now())
        grace, before = options.grace_period_seconds, meta.get("deletionGracePeriodSeconds")
        if grace is not None:
            meta["deletionGracePeriodSeconds"] = grace if before is None else min(grace, before)
        _set_finalizers(meta, finalizers)
        if propagation == "Orphan":
            for dependent in dependents:
                self._disown(dependent, {current.uid})
        elif propagation == "Foreground":
            self._collectable.extend(d.key for d in dependents)
            self._queue.append(current.key)
        if not self._blocked(current, meta):
            return self._remove(obj, current)
        return self._put(obj, current) if obj != current.obj else current

    def keep_held(self, current: Entry, meta: dict[str, Any]) -> None:
        """A client that sends an object without our finalizer does not end what others hold."""
        finalizers = meta.get("finalizers") or []
        held = IN_USE in (current.obj["metadata"].get("finalizers") or ()) and self._state.held(current.key)
        if held and isinstance(finalizers, list) and IN_USE not in finalizers:
            meta["finalizers"] = [*finalizers, IN_USE]

    def settle(self, entry: Entry, previous: Entry, freed: set[Key]) -> None:
        """To be called for every update; `freed`: what the object held before and no longer holds."""
        meta, before = entry.obj["metadata"], previous.obj["metadata"]
        if "deletionTimestamp" in meta:
            self._queue.append(entry.key)
        self._queue.extend(freed)
        if meta.get("ownerReferences") != before.get("ownerReferences"):
            self._reconsider_owners(previous)

    def adopt(self, entry: Entry) -> None:
        """Notes an object whose owners are all gone; it is collected after this transaction."""
        if entry.obj["metadata"].get("ownerReferences") and self._abandoned(entry):
            self._t.garbage.append(entry.key)

    def collect(self, dependent: Entry) -> None:
        """Deletes a dependent that no living owner keeps, else only drops the references to owners that went."""
        current = self._state.get(dependent.key)
        if current is None or current.uid != dependent.uid:
            return
        if self._abandoned(current):
            if "deletionTimestamp" not in current.obj["metadata"]:
                self.begin(current, DeleteOptions(SYSTEM, propagation=self._inherited(current)), [])
            return
        owners = current.obj["metadata"].get("ownerReferences") or ()
        gone = {owner["uid"] for owner in owners if not self._keeps(owner, current)}
        if gone:
            self._disown(current, gone)

    def drain(self) -> None:
        """Works off what followed, one by one: chains of owners may be long."""
        while self._queue or self._collectable or self._waiting:
            if not self._queue and not self._collectable:
                self._end_circles()
                continue
            if self._collectable:
                entry = self._state.get(self._collectable.popleft())
                if entry is not None:
                    self.collect(entry)
                continue
            entry = self._state.get(self._queue.popleft())
            if entry is not None and "deletionTimestamp" in entry.obj["metadata"]:
                self._reconsider(entry)

    def last(self, entry: Entry) -> Entry:
        """The newest version of this object made in the transaction."""
        return self._last.get(entry.uid, entry)

    # Inside

    def _reconsider(self, entry: Entry) -> None:
        finalizers = list(entry.obj["metadata"].get("finalizers") or ())
        if IN_USE in finalizers and not self._state.held(entry.key):
            finalizers.remove(IN_USE)
        if FOREGROUND in finalizers:
            if self._awaited(entry):
                self._waiting[entry.uid] = entry
            else:
                finalizers.remove(FOREGROUND)
        obj = pydantic_core.from_json(entry.body)
        _set_finalizers(obj["metadata"], finalizers)
        if not self._blocked(entry, obj["metadata"]):
            self._remove(obj, entry)
        elif finalizers != (entry.obj["metadata"].get("finalizers") or []):
            self._put(obj, entry)

    def _blocked(self, entry: Entry, meta: dict[str, Any]) -> bool:
        """Whether a finalizer keeps the object; forced deletion does not wait for those that the kind lets go."""
        finalizers = set(meta.get("finalizers") or ())
        if finalizers and meta.get("deletionGracePeriodSeconds") == 0:
            lens = lens_of(entry)
            finalizers -= set(lens.forced()) if lens is not None else set()
        return bool(finalizers)

    def _end_circles(self) -> None:
        """Owners that wait for nothing but one another would wait for ever."""
        found, self._waiting = self._waiting, {}
        blockers: dict[str, list[Entry]] = {}
        blocked: dict[str, list[str]] = {}
        entries = list(found.values())
        while entries:
            owner = entries.pop()
            if owner.uid in blockers:
                continue
            found[owner.uid] = owner
            blockers[owner.uid] = self._blockers(owner)
            for dependent in blockers[owner.uid]:
                blocked.setdefault(dependent.uid, []).append(owner.uid)
                if self._only_waits(dependent):
                    entries.append(dependent)
        kept = [uid for uid in blocked if uid not in blockers] + [
            uid for uid, entry in found.items() if not self._only_waits(entry)
        ]
        while kept:
            uid = kept.pop()
            blockers.pop(uid, None)
            kept.extend(blocked.pop(uid, ()))
        for uid in blockers:
            self._release(uid)

    def _release(self, uid: str) -> None:
        entry = self._state.by_uid(uid)
        if entry is not None:
            obj = pydantic_core.from_json(entry.body)
            _set_finalizers(obj["metadata"], [])
            self._remove(obj, entry)

    def _only_waits(self, entry: Entry) -> bool:
        """Nothing but its dependents keeps this Terminating object."""
        current = self._state.get(entry.key)
        if current is None or current.uid != entry.uid:
            return False
        meta = current.obj["metadata"]
        return "deletionTimestamp" in meta and meta.get("finalizers") == [FOREGROUND]

    def _awaited(self, owner: Entry) -> bool:
        return bool(self._blockers(owner))

    def _blockers(self, owner: Entry) -> list[Entry]:
        """Dependents that the owner's deletion in the foreground waits for."""
        return [
            dependent
            for dependent in self._state.dependents(owner.uid)
            if any(
                reference["uid"] == owner.uid and reference.get("blockOwnerDeletion")
                for reference in dependent.obj["metadata"]["ownerReferences"]
            )
        ]

    def _inherited(self, dependent: Entry) -> Propagation:
        """A dependent of a waiting owner is itself deleted in the foreground."""
        owners = dependent.obj["metadata"]["ownerReferences"]
        return "Foreground" if any(self._state.by_uid(o["uid"]) is not None for o in owners) else "Background"

    def _abandoned(self, entry: Entry) -> bool:
        owners = entry.obj["metadata"].get("ownerReferences") or ()
        return bool(owners) and not any(self._keeps(owner, entry) for owner in owners)

    def _keeps(self, reference: dict[str, Any], dependent: Entry) -> bool:
        """Whether this owner still speaks for its dependent: it exists and does not wait for it to go. An owner of a
        kind that is not served here is not judged."""
        owner = self._state.by_uid(reference["uid"])
        if owner is None:
            served = any(
                r.kind == reference["kind"] and r.api_version == reference["apiVersion"]
                for r in self._t.registry.resources()
            )
            return not served
        if owner.namespace not in ("", dependent.namespace):
            return False
        meta = owner.obj["metadata"]
        return not ("deletionTimestamp" in meta and FOREGROUND in (meta.get("finalizers") or ()))

    def _disown(self, dependent: Entry, uids: set[str]) -> None:
        current = self._state.get(dependent.key)
        if current is None:
            return
        obj = pydantic_core.from_json(current.body)
        kept = [o for o in obj["metadata"]["ownerReferences"] if o["uid"] not in uids]
        if kept:
            obj["metadata"]["ownerReferences"] = kept
        else:
            del obj["metadata"]["ownerReferences"]
        self._put(obj, current)

    def _users(self, entry: Entry, warnings: Warnings) -> bool:
        """Warns of objects that name this one; True when one of them holds it."""
        users = self._state.referrers(entry.key)
        if not users:
            return False
        named = ", ".join(self._user(user, entry) for user in users[:_NAMED])
        if len(users) > _NAMED:
            named += f" and {len(users) - _NAMED} more"
        held = self._state.held(entry.key)
        then = "; it goes when the last of them goes" if held else ""
        warnings.append(f"{self._t.called(entry.key)} is used by {named}{then}")
        return held

    def _user(self, user: Entry, used: Entry) -> str:
        elsewhere = user.namespace not in ("", used.namespace)
        return self._t.called(user.key) + (f" in namespace {user.namespace}" if elsewhere else "")

    def _put(self, obj: dict[str, Any], previous: Entry) -> Entry:
        references = self._state.references(previous.key)
        entry = self._last[previous.uid] = self._t.put(previous.cls, obj, references, previous)
        return entry

    def _remove(self, obj: dict[str, Any], previous: Entry) -> Entry:
        held = held_by(self._state.references(previous.key))
        entry = self._last[previous.uid] = self._t.remove(obj, previous)
        self._queue.extend(held)
        self._reconsider_owners(previous)
        self._collectable.extend(d.key for d in self._state.dependents(previous.uid))
        return entry

    def _reconsider_owners(self, entry: Entry) -> None:
        for reference in entry.obj["metadata"].get("ownerReferences") or ():
            owner = self._state.by_uid(reference["uid"])
            if owner is not None:
                self._queue.append(owner.key)


def _set_finalizers(meta: dict[str, Any], finalizers: list[str]) -> None:
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)
