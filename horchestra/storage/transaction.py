"""Writes that become one: the rules every write goes through, in the writer's thread, on the writer's view."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pydantic_core

from horchestra.apimachinery import names
from horchestra.apimachinery.admission import SYSTEM, AdmissionRequest, Operation, User
from horchestra.apimachinery.codec import encode
from horchestra.apimachinery.errors import Cause, StatusError, already_exists, conflict, not_found
from horchestra.apimachinery.meta import APIObject
from horchestra.apimachinery.registry import Registry

from . import admission
from .deletion import Deletion, Warnings
from .entry import Entry, Event, EventType, Key
from .options import DeleteOptions, WriteOptions, Written
from .state import References, State, held_by, lens_of

Change = Callable[[dict[str, Any]], dict[str, Any]]
Objects = list[dict[str, Any]]

_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
_NAME_ATTEMPTS = 8


class Transaction:
    """Handed to the function given to `Store.transaction`. Any exception that leaves the function undoes all of it.
    Objects returned are shared: never change them."""

    def __init__(self, registry: Registry, state: State) -> None:
        self.registry = registry
        self.state = state
        self.events: list[Event] = []
        self.dry_run = False
        self.garbage: list[Key] = []
        """Objects whose owners are all gone: to be collected by a transaction after this one."""
        self._further: Objects = []
        self._deletion = Deletion(self)

    # Reading (the ReadView of hooks)

    def get(self, target: str, namespace: str, name: str) -> dict[str, Any] | None:
        entry = self.state.get((target, namespace, name))
        return None if entry is None else entry.obj

    def list(self, target: str, namespace: str | None = None) -> Sequence[dict[str, Any]]:
        return [entry.obj for entry in self.state.entries(target, namespace)]

    def referrers(self, target: str, namespace: str, name: str, part: str = "") -> Sequence[dict[str, Any]]:
        return [entry.obj for entry in self.state.referrers((target, namespace, name), part)]

    # Writing

    def create(self, cls: type[APIObject], obj: dict[str, Any], options: WriteOptions) -> Written:
        """Takes over `obj`. Raises StatusError AlreadyExists, Invalid, BadRequest, NotFound (namespace), Forbidden."""
        self.dry_run |= options.dry_run
        warnings: Warnings = []
        obj = admission.ordered(cls, obj)
        admission.known_fields(cls, obj, options, warnings)
        meta = obj["metadata"]
        if meta.pop("resourceVersion", ""):
            raise StatusError("BadRequest", "resourceVersion should not be set on objects to be created")
        for field in (*admission.SERVER_FIELDS, "managedFields"):
            meta.pop(field, None)
        if cls.resource.status:
            obj.pop("status", None)
        if not cls.resource.namespaced and not meta.get("namespace"):
            meta.pop("namespace", None)
        self._check_namespace(cls, meta)
        self._name(cls, meta)
        admission.stored_form(cls, obj)
        meta.update(uid=str(uuid.uuid4()), generation=1, creationTimestamp=admission.now())
        meta["resourceVersion"] = self._next_version()
        admission.finalized(cls, meta)
        lens, body = admission.typed(cls, obj)
        references = tuple(lens.references())
        self._warn_of_missing(references, warnings)
        lens.admit(self._request(Operation.CREATE, lens, options.user, None, warnings))
        entry = self.put(cls, obj, references, None, body)
        self._deletion.adopt(entry)
        self.finish()
        return Written(entry.obj, entry.body, warnings)

    def update(
        self,
        cls: type[APIObject],
        namespace: str,
        name: str,
        change: Change,
        options: WriteOptions,
        *,
        subresource: str = "",
    ) -> Written:
        """`change` gets a private copy of the current JSON and returns the new one. Raises StatusError NotFound,
        Conflict, Invalid, BadRequest, and what `change` raises."""
        self.dry_run |= options.dry_run
        warnings: Warnings = []
        current = self.current(cls, namespace, name)
        obj = admission.ordered(cls, change(pydantic_core.from_json(current.body)))
        self._check_preconditions(current, obj["metadata"])
        self._keep(current, obj, subresource)
        admission.known_fields(cls, obj, options, warnings)
        admission.stored_form(cls, obj)
        if admission.same(current.obj, obj):
            return Written(current.obj, current.body, warnings, changed=False)
        held = held_by(self.state.references(current.key))
        entry = self._replace(current, obj, options, subresource, warnings)
        self._deletion.settle(entry, current, held - held_by(self.state.references(entry.key)))
        self._deletion.adopt(entry)
        self.finish()
        return self._written(entry, warnings)

    def delete(self, cls: type[APIObject], namespace: str, name: str, options: DeleteOptions) -> Written:
        """Raises StatusError NotFound, Conflict, and what the kind's `admit` raises."""
        self.dry_run |= options.dry_run
        warnings: Warnings = []
        current = self.current(cls, namespace, name)
        preconditions = {"uid": options.uid, "resourceVersion": options.resource_version}
        self._check_preconditions(current, preconditions, deleting=True)
        lens = lens_of(current)
        if lens is not None:
            lens.admit(self._request(Operation.DELETE, lens, options.user, current.obj, warnings))
        entry = self._deletion.begin(current, options, warnings)
        self.finish()
        written = self._written(entry, warnings)
        if not written.gone and entry is current:
            return Written(entry.obj, entry.body, warnings, changed=False)
        return written

    def collect(self, key: Key) -> None:
        """Deletes an object if its owners are still all gone."""
        entry = self.state.get(key)
        if entry is not None:
            self._deletion.collect(entry)
            self.finish()

    # For the rules of deletion

    def current(self, cls: type[APIObject], namespace: str, name: str) -> Entry:
        """Raises StatusError NotFound."""
        r = cls.resource
        entry = self.state.get((r.qualified, namespace if r.namespaced else "", name))
        if entry is None:
            raise not_found(r.group, r.plural, name)
        return entry

    def put(
        self,
        cls: type[APIObject],
        obj: dict[str, Any],
        references: References,
        previous: Entry | None,
        body: bytes | None = None,
    ) -> Entry:
        """Stores a version and tells about it. `body`: `obj` encoded, its resourceVersion being _next_version()."""
        entry = self._version(cls, obj, body)
        self.state.put(entry, references)
        self.events.append(Event(EventType.MODIFIED if previous else EventType.ADDED, entry, previous))
        return entry

    def remove(self, obj: dict[str, Any], previous: Entry) -> Entry:
        """Ends the object; what its kind wants to happen then happens."""
        entry = self._version(previous.cls, obj)
        self.state.remove(entry.key)
        self.events.append(Event(EventType.DELETED, entry, previous))
        lens = lens_of(entry)
        if lens is not None:
            lens.deleted(self._request(Operation.DELETE, lens, SYSTEM, previous.obj, []))
        return entry

    def finish(self) -> None:
        """What follows from a write: dependents, objects that were held, objects that hooks stored."""
        self._deletion.drain()
        while self._further:
            further, self._further = self._further, []
            for obj in further:
                self._store(obj)
            self._deletion.drain()

    # Inside

    def _next_version(self) -> str:
        """The resourceVersion of what is stored next."""
        return str(self.state.revision + 1)

    def _version(self, cls: type[APIObject], obj: dict[str, Any], body: bytes | None = None) -> Entry:
        meta = obj["metadata"]
        if body is None:
            meta["resourceVersion"] = self._next_version()
            body = encode(obj)
        revision = self.state.next_revision()
        return Entry(cls, meta.get("namespace", ""), meta["name"], meta["uid"], revision, body, obj)

    def _written(self, entry: Entry, warnings: Warnings) -> Written:
        final = self._deletion.last(entry)
        gone = self.state.get(final.key) is None
        return Written(final.obj, final.body, warnings, gone=gone)

    def _request(
        self, operation: Operation, lens: APIObject, user: User, old: dict[str, Any] | None, warnings: Warnings
    ) -> AdmissionRequest:
        return AdmissionRequest(
            operation=operation,
            user=user,
            resource=lens.resource,
            view=self,
            old=old,
            dry_run=self.dry_run,
            warn=warnings.append,
            store=self._further.append,
        )

    def _store(self, obj: dict[str, Any]) -> None:
        cls = self.registry.kind(obj["apiVersion"], obj["kind"])
        meta = obj["metadata"]
        key = (cls.resource.qualified, meta.get("namespace", ""), meta["name"])
        options = WriteOptions(SYSTEM)
        if self.state.get(key) is None:
            self.create(cls, obj, options)
            return
        kept = ("resourceVersion", "uid")
        self.update(
            cls,
            key[1],
            key[2],
            lambda old: {**obj, "metadata": {**meta, **{k: old["metadata"][k] for k in kept}}},
            options,
        )

    def _check_namespace(self, cls: type[APIObject], meta: dict[str, Any]) -> None:
        namespace = meta.get("namespace")
        if not cls.resource.namespaced or not isinstance(namespace, str) or not namespace:
            return
        found = self.get("namespaces", "", namespace)
        if found is None:
            raise not_found("", "namespaces", namespace)
        if found["metadata"].get("deletionTimestamp"):
            r = cls.resource
            name = str(meta.get("name", ""))
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = Cause("NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace")
            message = f'{r.qualified} "{name}" is forbidden: {why}'
            raise StatusError("Forbidden", message, group=r.group, kind=r.plural, name=name, causes=[cause])

    def _name(self, cls: type[APIObject], meta: dict[str, Any]) -> None:
        r = cls.resource
        prefix = meta.get("generateName")
        namespace = meta.get("namespace", "")
        if not meta.get("name") and isinstance(prefix, str) and prefix:
            for _ in range(_NAME_ATTEMPTS):
                meta["name"] = names.generated_name(prefix)
                if self.state.get((r.qualified, namespace, meta["name"])) is None:
                    break
        if not isinstance(meta.get("name", ""), str) or not isinstance(namespace, str):
            return
        existing = self.state.get((r.qualified, namespace, meta.get("name", "")))
        if existing is not None:
            error = already_exists(r.group, r.plural, existing.name)
            if existing.obj["metadata"].get("deletionTimestamp"):
                error.message = f"object is being deleted: {error.message}"
            raise error

    def _check_preconditions(self, current: Entry, wanted: dict[str, Any], *, deleting: bool = False) -> None:
        r = current.cls.resource
        uid, version = wanted.get("uid"), wanted.get("resourceVersion")
        if uid and uid != current.uid:
            why = f"Precondition failed: UID in precondition: {str(uid)[:100]}, UID in object meta: {current.uid}"
            raise conflict(r.group, r.plural, current.name, why)
        if version and version not in (str(current.revision), "0"):
            why = _MODIFIED
            if deleting:
                why = (
                    f"Precondition failed: ResourceVersion in precondition: {str(version)[:100]}, "
                    f"ResourceVersion in object meta: {current.revision}"
                )
            raise conflict(r.group, r.plural, current.name, why)

    def _keep(self, current: Entry, obj: dict[str, Any], subresource: str) -> None:
        """Puts back, in place, what this write cannot change."""
        old = current.obj
        if subresource == "status":
            status = obj.get("status")
            obj.clear()
            obj.update(pydantic_core.from_json(current.body))
            obj.pop("status", None)
            if status is not None:
                obj["status"] = status
            return
        meta, before = obj["metadata"], old["metadata"]
        for field in ("name", "namespace", "generateName"):
            if meta.get(field) and meta[field] != before.get(field, ""):
                cause = Cause("FieldValueInvalid", "Invalid value: field is immutable", f"metadata.{field}")
                raise admission.refused(current.cls.resource, old, [cause])
        kept = ("name", "namespace", "generateName", "resourceVersion", "managedFields", *admission.SERVER_FIELDS)
        for field in kept:
            meta.pop(field, None)
            if field in before:
                meta[field] = before[field]
        self._deletion.keep_held(current, meta)
        if current.cls.resource.status:
            obj.pop("status", None)
            if "status" in old:
                obj["status"] = pydantic_core.from_json(encode(old["status"]))

    def _replace(
        self, current: Entry, obj: dict[str, Any], options: WriteOptions, subresource: str, warnings: Warnings
    ) -> Entry:
        cls, old, meta = current.cls, current.obj, obj["metadata"]
        spec_changed = not admission.same(admission.spec_of(old), admission.spec_of(obj))
        if spec_changed:
            meta["generation"] = old["metadata"].get("generation", 0) + 1
        terminating = "deletionTimestamp" in meta
        if terminating:
            self._no_new_finalizers(current, obj)
        status = subresource == "status"
        leaving = terminating and not spec_changed
        meta["resourceVersion"] = self._next_version()
        lens, body = admission.typed(
            cls, obj, rules=not status and not leaving, of=subresource if status or not leaving else None
        )
        references = tuple(lens.references())
        if not status and not leaving:
            admission.check_update(lens, lens_of(current), obj)
            self._warn_of_missing(references, warnings)
        if not leaving or status:
            operation = Operation.STATUS if status else Operation.UPDATE
            lens.admit(self._request(operation, lens, options.user, old, warnings))
        return self.put(cls, obj, references, current, body)

    def _no_new_finalizers(self, current: Entry, obj: dict[str, Any]) -> None:
        before = current.obj["metadata"].get("finalizers") or []
        after = obj["metadata"].get("finalizers")
        new = [str(f) for f in after if f not in before] if isinstance(after, list) else []
        if new:
            message = "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers "
            cause = Cause("FieldValueForbidden", message + ", ".join(new), "metadata.finalizers")
            raise admission.refused(current.cls.resource, obj, [cause])

    def _warn_of_missing(self, references: References, warnings: Warnings) -> None:
        for reference in references:
            if reference.part:
                continue
            key = (reference.target, reference.namespace, reference.name)
            target = self.state.get(key)
            if target is not None and "deletionTimestamp" not in target.obj["metadata"]:
                continue
            state = "not found" if target is None else "is being deleted"
            warnings.append(f"{reference.field}: {self.called(key)} {state}")

    def called(self, key: Key) -> str:
        """`node "sav-01"`, `secret "db"`: an object in a message."""
        try:
            singular = self.registry.qualified(key[0]).resource.singular
        except KeyError:
            singular = key[0]
        return f'{singular} "{key[2]}"'
