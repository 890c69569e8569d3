"""From what a client sent to what may be stored: the steps before a write that need no other object."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from horchestra.apimachinery import schema
from horchestra.apimachinery.codec import encode
from horchestra.apimachinery.errors import Cause, StatusError, invalid
from horchestra.apimachinery.meta import APIObject
from horchestra.apimachinery.registry import Resource

from .options import WriteOptions

MAX_BYTES = 3 * 1024 * 1024
"""Of an object without its status, encoded: what one request can carry."""
MAX_STATUS_BYTES = 1024 * 1024
SERVER_FIELDS = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")
"""Metadata that clients cannot set; what they send is ignored."""


def now() -> str:
    """RFC 3339, UTC, whole seconds, as Kubernetes writes times."""
    return _stamp(int(time.time()))


@lru_cache(1)
def _stamp(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ordered(cls: type[APIObject], obj: Any) -> dict[str, Any]:
    """A new outer object that begins with apiVersion, kind and metadata. Raises StatusError BadRequest when the value
    is no object of this kind."""
    r = cls.resource
    if not isinstance(obj, dict):
        raise StatusError("BadRequest", f"the body must be a {r.kind} object")
    for field, wanted in (("apiVersion", r.api_version), ("kind", r.kind)):
        if obj.get(field, wanted) != wanted:
            message = f"the {field} in the data ({str(obj[field])[:100]}) does not match what was addressed ({wanted})"
            raise StatusError("BadRequest", message)
    meta = obj.get("metadata")
    if meta is not None and not isinstance(meta, dict):
        raise StatusError("BadRequest", "metadata must be a map")
    rest = {k: v for k, v in obj.items() if k not in ("apiVersion", "kind", "metadata")}
    return {"apiVersion": r.api_version, "kind": r.kind, "metadata": meta or {}, **rest}


def known_fields(cls: type[APIObject], obj: dict[str, Any], options: WriteOptions, warnings: list[str]) -> None:
    """Removes unknown fields, in place, and says so as `fieldValidation` asks. Raises StatusError BadRequest."""
    unknown = schema.prune(cls, obj)
    if not unknown or options.field_validation == "Ignore":
        return
    said = [f'unknown field "{path[:300]}"' for path in unknown[:50]]
    if options.field_validation == "Warn":
        warnings.extend(said)
        return
    r = cls.resource
    message = f'{r.kind} in version "{r.version}" cannot be handled as a {r.kind}: strict decoding error: '
    raise StatusError("BadRequest", message + ", ".join(said))


def finalized(cls: type[APIObject], meta: dict[str, Any]) -> None:
    """Puts on, in place, the finalizers of a new object of the kind."""
    found = meta.get("finalizers") or []
    new = [f for f in cls.finalizers() if isinstance(found, list) and f not in found]
    if new:
        meta["finalizers"] = [*found, *new]


def stored_form(cls: type[APIObject], obj: dict[str, Any]) -> None:
    """`prepare` and defaults, in place."""
    cls.prepare(obj)
    schema.apply_defaults(cls, obj)


def typed(
    cls: type[APIObject], obj: dict[str, Any], *, rules: bool = True, of: str | None = ""
) -> tuple[APIObject, bytes]:
    """The lens, and the object encoded. `of`: the subresource whose size is checked, None for none.

    Raises StatusError Invalid, BadRequest, RequestEntityTooLarge.
    """
    try:
        body = encode(obj)
    except ValueError as error:
        raise StatusError("BadRequest", f"the object cannot be encoded as JSON: {error}") from None
    if len(body) > MAX_BYTES and of is not None:
        _check_size(cls, obj, len(body), of)
    return schema.validate(cls, obj, body, rules=rules), body


def _check_size(cls: type[APIObject], obj: dict[str, Any], size: int, subresource: str) -> None:
    """Patches could make an object of any size, one body at a time. Of an object of full size the status can still be
    written, and the other way round."""
    status = len(encode(obj.get("status")))
    measured, most = (status, MAX_STATUS_BYTES) if subresource == "status" else (size - status, MAX_BYTES)
    if measured > most:
        r, name = cls.resource, str(obj["metadata"].get("name", ""))
        what = f'{"the status of " if subresource == "status" else ""}{r.qualified} "{name[:253]}"'
        message = f"{what} has {measured} bytes; at most {most} are allowed"
        raise StatusError("RequestEntityTooLarge", message, group=r.group, kind=r.plural, name=name)


def check_update(lens: APIObject, old: APIObject | None, obj: dict[str, Any]) -> None:
    """Raises StatusError Invalid."""
    causes = lens.validate_update(old) if old is not None else []
    if causes:
        raise refused(lens.resource, obj, causes)


def refused(r: Resource, obj: dict[str, Any], causes: list[Cause]) -> StatusError:
    return invalid(r.group, r.kind, str(obj["metadata"].get("name", "")), causes)


def same(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Equal as JSON: order of keys aside, and 1, 1.0 and true are three values."""
    if old != new:
        return False
    if encode(old) == encode(new):
        return True
    return json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)


def spec_of(obj: dict[str, Any]) -> dict[str, Any]:
    """Everything that generation counts: all but metadata and status."""
    return {k: v for k, v in obj.items() if k not in ("metadata", "status")}
