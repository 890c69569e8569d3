"""How a write is asked for: query parameters and the bodies of deletions."""

from __future__ import annotations

from typing import Any, cast

from horchestra.apimachinery.errors import Cause, StatusError
from horchestra.storage.store import DeleteOptions, WriteOptions

from .bodies import decode, media_type_of
from .request import Request

VALIDATIONS = ("Strict", "Warn", "Ignore")
PROPAGATIONS = ("Background", "Foreground", "Orphan")


def dry_run(values: list[str], kind: str) -> bool:
    """`dryRun=All`. Raises StatusError Invalid for anything else."""
    wrong = next((value for value in values if value not in ("", "All")), None)
    if wrong is not None:
        message = f'Unsupported value: "{wrong}": supported values: "All"'
        raise _invalid(kind, Cause("FieldValueNotSupported", message, "dryRun"))
    return "All" in values


def write_options(request: Request) -> WriteOptions:
    """Unknown fields warn unless the client asks otherwise, as in Kubernetes. Raises StatusError Invalid."""
    validation = request.param("fieldValidation") or "Warn"
    if validation not in VALIDATIONS:
        message = f'Unsupported value: "{validation}": supported values: "Ignore", "Warn", "Strict"'
        raise _invalid("WriteOptions", Cause("FieldValueNotSupported", message, "fieldValidation"))
    request.dry_run = dry_run(request.query.get("dryRun", []), "WriteOptions")
    return WriteOptions(
        user=request.user,
        dry_run=request.dry_run,
        field_validation=cast(Any, validation),
        field_manager=request.param("fieldManager")[:128],
    )


async def delete_options(request: Request, body: bytes) -> DeleteOptions:
    """From the body (JSON, YAML or protobuf; kind may be missing), else from the query. Raises StatusError."""
    given = await _delete_body(request, body)
    preconditions = _typed(given, "preconditions", dict) or {}
    grace = _typed(given, "gracePeriodSeconds", int)
    propagation = _typed(given, "propagationPolicy", str)
    if "orphanDependents" in given and propagation is None:
        propagation = "Orphan" if _typed(given, "orphanDependents", bool) else "Background"
    if grace is not None and grace < 0:
        grace = 1
    if propagation is not None and propagation not in PROPAGATIONS:
        message = f'Unsupported value: "{propagation}": supported values: "Background", "Foreground", "Orphan"'
        raise _invalid("DeleteOptions", Cause("FieldValueNotSupported", message, "propagationPolicy"))
    values = [*request.query.get("dryRun", []), *(_typed(given, "dryRun", list) or [])]
    request.dry_run = dry_run([str(v) for v in values], "DeleteOptions")
    return DeleteOptions(
        user=request.user,
        dry_run=request.dry_run,
        grace_period_seconds=grace,
        propagation=cast(Any, propagation),
        uid=_typed(preconditions, "uid", str),
        resource_version=_typed(preconditions, "resourceVersion", str),
    )


async def _delete_body(request: Request, body: bytes) -> dict[str, Any]:
    if not body:
        given: dict[str, Any] = {}
        grace = request.number("gracePeriodSeconds")
        if grace is not None:
            given["gracePeriodSeconds"] = grace
        if request.param("propagationPolicy"):
            given["propagationPolicy"] = request.param("propagationPolicy")
        if request.param("orphanDependents"):
            given["orphanDependents"] = request.flag("orphanDependents")
        return given
    media_type = media_type_of(request)
    value = (await decode(body, media_type)).value
    if not isinstance(value, dict):
        raise StatusError("BadRequest", "the body of a deletion must be a DeleteOptions object")
    if value.get("kind") not in (None, "", "DeleteOptions"):
        raise StatusError(
            "BadRequest", f"the body of a deletion must be DeleteOptions, not {str(value['kind'])[:100]!r}"
        )
    return value


def _typed(given: dict[str, Any], key: str, kind: type) -> Any:
    value = given.get(key)
    if value is None or (isinstance(value, kind) and not (kind is int and isinstance(value, bool))):
        return value
    raise StatusError("BadRequest", f"DeleteOptions: {key} must be of type {kind.__name__}")


def _invalid(kind: str, cause: Cause) -> StatusError:
    message = f'{kind}.meta.k8s.io "" is invalid: {cause.field}: {cause.message}'
    return StatusError("Invalid", message, group="meta.k8s.io", kind=kind, causes=[cause])
