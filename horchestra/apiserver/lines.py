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

JOINED = 64 * 1024


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

    def batch(self, batch: Batch, chosen: Selection) -> Iterator[bytes]:
        """The lines of all events that concern the selection: small ones joined, and large ones the same bytes for all
        who are told of them."""
        if chosen.everything:
            yield self._all(batch, chosen)
            return
        held: list[bytes] = []
        size = 0
        for change in self._changes(batch):
            line = self._selected(change, chosen, batch.cache)
            if size + len(line) > JOINED:
                yield b"".join(held)
                held, size = [], 0
            held.append(line)
            size += len(line)
        yield b"".join(held)

    def _all(self, batch: Batch, chosen: Selection) -> bytes:
        if self._plain:
            return batch.lines
        made: bytes | None = batch.cache.get(self._key)
        if made is None:
            made = batch.cache[self._key] = b"".join(
                [self._selected(c, chosen, batch.cache) for c in self._changes(batch)]
            )
        return made

    def _changes(self, batch: Batch) -> Iterator[Change]:
        for event in batch:
            yield from self._view.changes(event)

    def _selected(self, change: Change, chosen: Selection, made: dict[str, Any]) -> bytes:
        """A selector makes ADDED and DELETED of what comes to match or ceases to. The line is `made` once for all."""
        before, now = chosen.matches(change.old), chosen.matches(change.new)
        if now and change.new is not None:
            kind, entry, revision = (b"MODIFIED" if before else b"ADDED"), change.new, None
        elif before and change.old is not None:
            kind, entry, revision = b"DELETED", change.last or change.old, change.revision
        else:
            return b""
        key = f"{self._key}:{kind!r}:{change.revision}"
        line: bytes | None = made.get(key)
        if line is None:
            line = made[key] = self._line(kind, entry, revision)
        return line

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
