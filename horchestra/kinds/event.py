"""Event (core/v1): what happened to an object, in words; expires after an hour."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from horchestra.apimachinery.meta import APIObject, Model
from horchestra.apimachinery.registry import Column, Resource


class ObjectReference(Model):
    apiVersion: str = ""
    """API version of the object."""
    kind: str = ""
    """Kind of the object."""
    namespace: str = ""
    """Namespace of the object."""
    name: str = ""
    """Name of the object."""
    uid: str = ""
    """UID of the object."""
    resourceVersion: str = ""
    """Version of the object the event speaks of."""
    fieldPath: str = ""
    """Part of the object."""


class EventSource(Model):
    component: str = ""
    """Program that reports."""
    host: str = ""
    """Node it reports from."""


def _subject(obj: dict[str, Any]) -> str:
    about = obj.get("involvedObject", {})
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _first_seen(obj: dict[str, Any]) -> str | None:
    found: str | None = obj.get("firstTimestamp") or obj.get("eventTime") or obj["metadata"].get("creationTimestamp")
    return found


def _last_seen(obj: dict[str, Any]) -> str | None:
    found: str | None = obj.get("lastTimestamp") or _first_seen(obj)
    return found


def _source(obj: dict[str, Any]) -> str:
    source = obj.get("source") or {"component": obj.get("reportingComponent"), "host": obj.get("reportingInstance")}
    return ", ".join(filter(None, (source.get("component"), source.get("host"))))


class Event(APIObject):
    """Something that happened to an object. Repetitions raise `count` instead of making new events."""

    resource = Resource(
        group="",
        version="v1",
        kind="Event",
        plural="events",
        singular="event",
        short_names=("ev",),
        strategic_merge=True,
        all_columns=True,
        columns=(
            Column("Last Seen", _last_seen, type="date", description="Time since it happened last"),
            Column("Type", lambda o: o.get("type", "Normal"), description="Normal or Warning"),
            Column("Reason", lambda o: o.get("reason", ""), description="CamelCase reason"),
            Column("Object", _subject, description="What it happened to"),
            Column("Subobject", lambda o: o.get("involvedObject", {}).get("fieldPath", ""), wide=True),
            Column("Source", _source, wide=True, description="Who reports it"),
            Column("Message", lambda o: o.get("message", "").strip(), description="What happened"),
            Column("First Seen", _first_seen, type="date", wide=True, description="Time since it happened first"),
            Column("Count", lambda o: o.get("count", 1), type="integer", wide=True, description="How often"),
            Column("Name", lambda o: o["metadata"]["name"], format="name", wide=True, description="Name of the event"),
        ),
        field_selectors={
            "type": "type",
            "reason": "reason",
            "reportingComponent": "reportingComponent",
            "source": "source.component",
            **{
                f"involvedObject.{name}": f"involvedObject.{name}"
                for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
            },
        },
    )

    involvedObject: ObjectReference = Field(default_factory=ObjectReference)
    """What the event is about."""
    reason: str = ""
    """CamelCase reason, for machines."""
    message: str = ""
    """What happened and what to do, for people."""
    type: str = "Normal"
    """Normal or Warning."""
    source: EventSource = Field(default_factory=EventSource)
    """Who reports it."""
    firstTimestamp: str | None = None
    """When it happened first (RFC 3339)."""
    lastTimestamp: str | None = None
    """When it happened last (RFC 3339)."""
    count: int = 1
    """How often it happened."""
    eventTime: str | None = None
    """When it happened, with microseconds."""
    reportingComponent: str = ""
    """Name of the controller that reports."""
    reportingInstance: str = ""
    """Instance of the controller that reports."""
    action: str = ""
    """What was done about it."""
