"""JSON Patch (RFC 6902). Merge patches, which need no library, are in apimachinery/patch.py."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import jsonpointer

from horchestra.apimachinery.codec import encode
from horchestra.apimachinery.errors import StatusError

MAX_OPERATIONS = 1000
MAX_COPIED = 1024 * 1024
"""Bytes that `copy` operations may add in all: a list copied into itself doubles each time."""


def json_patch(obj: Any, operations: Any) -> Any:
    """A new value; `obj` is not changed. Raises StatusError BadRequest (malformed), Invalid (a test fails, or it does
    not apply to this object), RequestEntityTooLarge."""
    if not isinstance(operations, list):
        raise StatusError(
            "BadRequest", 'a JSON patch is a list of operations: [{"op": "add", "path": "/a", "value": 1}]'
        )
    if len(operations) > MAX_OPERATIONS:
        message = f"the JSON patch has {len(operations)} operations; at most {MAX_OPERATIONS} are allowed"
        raise StatusError("RequestEntityTooLarge", message)
    out = copy.deepcopy(obj)
    copied = 0
    for at, operation in enumerate(operations):
        try:
            if isinstance(operation, dict) and operation.get("op") == "copy":
                copied += len(encode(jsonpointer.resolve_pointer(out, str(operation.get("from")))))
                if copied > MAX_COPIED:
                    message = f"the JSON patch copies more than {MAX_COPIED} bytes"
                    raise StatusError("RequestEntityTooLarge", message)
            out = jsonpatch.JsonPatch([operation]).apply(out, in_place=True)
        except jsonpatch.JsonPatchTestFailed:
            raise _refused(at, operation, "the value there is another one") from None
        except (jsonpatch.JsonPatchConflict, jsonpointer.JsonPointerException):
            raise _refused(at, operation, "the object has no such place") from None
        except RecursionError:
            raise StatusError("BadRequest", f"operation {at} of the JSON patch nests the object too deeply") from None
        except (jsonpatch.JsonPatchException, TypeError, KeyError, AttributeError, ValueError) as error:
            why = str(error)[:200] if isinstance(error, jsonpatch.JsonPatchException) else "a field has a wrong type"
            raise StatusError("BadRequest", f"operation {at} of the JSON patch is malformed: {why}") from None
    return out


def _refused(at: int, operation: dict[str, Any], why: str) -> StatusError:
    """Names places, never values: the object may be a Secret that the caller may change but not read."""
    what = f"{operation['op']} {str(operation.get('path'))[:200]}"
    return StatusError("Invalid", f"operation {at} of the JSON patch ({what}) does not apply: {why}")
