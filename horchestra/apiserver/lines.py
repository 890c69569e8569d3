"""Events of a watch as they go over the wire, in the shape that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from horchestra.apimachinery import codec
from horchestra.apimachinery.errors import StatusError
from horchestra.storage.watch import Batch, Entry

from . import table
from .negotiation import Shape, shape
from .request import Request
from .selection import Selection
from .view import Change, View


class Lines:
    """Events of one view in one shape as they go over the wire."""

    def __init__(self, view: View, request: Request) -> None:
        self._view = view
        self._resource = view.resource
        self._shape = shape(request.header(b"accept"))
        self._include = table.include_object(request.param("includeObject"))
        self._key = f"{self._resource.qualified}:{self._shape}:{self._include}"
        self._plain = view.project is None and self._shape is Shape.OBJECT
        self._head = table.head(self._resource) if self._shape is Shape.TABLE else b""

    def batch(self, batch: Batch, chosen: Selection) -> bytes:
        """The lines of all events that concern the selection."""
        if not chosen.everything:
            return b"".join([line for change in self._changes(batch) if (line := self._selected(change, chosen))])
        if self._plain:
            return batch.lines
        made: bytes | None = batch.cache.get(self._key)
        if made is None:
            made = batch.cache[self._key] = b"".join([self._selected(c, chosen) for c in self._changes(batch)])
        return made

    def _changes(self, batch: Batch) -> Iterator[Change]:
        for event in batch:
            yield from self._view.changes(event)

    def _selected(self, change: Change, chosen: Selection) -> bytes:
        """A selector makes ADDED and DELETED of what comes to match or ceases to."""
        before, now = chosen.matches(change.old), chosen.matches(change.new)
        if now and change.new is not None:
            return self._line(b"MODIFIED" if before else b"ADDED", change.new)
        if before and change.old is not None:
            return self._line(b"DELETED", change.last or change.old, change.revision)
        return b""

    def added(self, entry: Entry) -> bytes:
        return self._line(b"ADDED", entry)

    def _line(self, kind: bytes, entry: Entry, revision: int | None = None) -> bytes:
        """`revision`: what resourceVersion a deletion reports, where that is not the object's own."""
        if revision is not None and revision != entry.revision:
            obj = entry.obj
            obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(revision)}}
            entry = Entry(entry.cls, entry.namespace, entry.name, entry.uid, revision, codec.encode(obj), obj)
        return b'{"type":"%b","object":%b}\n' % (kind, self._object(entry))

    def _object(self, entry: Entry) -> bytes:
        match self._shape:
            case Shape.TABLE:
                metadata = b',"metadata":{"resourceVersion":"%d"},"rows":[' % entry.revision
                return (
                    self._head + metadata + table.row(self._resource, entry, self._include, datetime.now(UTC)) + b"]}"
                )
            case Shape.METADATA:
                return table.partial(entry.obj)
        return entry.body

    def bookmark(self, revision: int, annotations: dict[str, str] | None) -> bytes:
        metadata: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        resource = self._resource
        obj: dict[str, Any] = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        if self._shape is Shape.TABLE:
            encoded = codec.encode({"cells": [], "object": obj})
            body = b'%b,"metadata":{"resourceVersion":"%d"},"rows":[%b]}' % (self._head, revision, encoded)
        elif self._shape is Shape.METADATA:
            body = codec.encode({**obj, "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"})
        else:
            body = codec.encode(obj)
        return b'{"type":"BOOKMARK","object":%b}\n' % body

    def error(self, error: StatusError) -> bytes:
        return b'{"type":"ERROR","object":%b}\n' % codec.encode(error.status())
