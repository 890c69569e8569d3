"""ConfigMap (core/v1)."""

from __future__ import annotations

import base64
import binascii

from pydantic import Field

from horchestra.apimachinery.errors import Cause
from horchestra.apimachinery.meta import APIObject
from horchestra.apimachinery.registry import Column, Resource

MAX_BYTES = 1024 * 1024


class ConfigMap(APIObject):
    """Settings that applications read as environment variables or files."""

    resource = Resource(
        group="",
        version="v1",
        kind="ConfigMap",
        plural="configmaps",
        singular="configmap",
        short_names=("cm",),
        strategic_merge=True,
        columns=(
            Column(
                "Data",
                lambda o: len(o.get("data") or {}) + len(o.get("binaryData") or {}),
                type="integer",
                description="Number of keys",
            ),
        ),
    )

    data: dict[str, str] = Field(default_factory=dict)
    """Text values by key."""
    binaryData: dict[str, str] = Field(default_factory=dict)
    """Other values by key, base64."""
    immutable: bool = False
    """When true, data cannot change any more."""

    def validate_object(self) -> list[Cause]:
        causes = []
        total = sum(len(v.encode()) for v in self.data.values())
        for key, value in self.binaryData.items():
            try:
                total += len(base64.b64decode(value, validate=True))
            except (binascii.Error, ValueError):
                causes.append(Cause("FieldValueInvalid", "is not base64", f"binaryData[{key}]"))
            if key in self.data:
                causes.append(Cause("FieldValueInvalid", f"duplicate of key {key!r} in data", f"binaryData[{key}]"))
        if total > MAX_BYTES:
            causes.append(Cause("FieldValueTooLong", f"{total} bytes; at most {MAX_BYTES} are allowed", "data"))
        return causes

    def validate_update(self, old: ConfigMap) -> list[Cause]:
        if old.immutable and (self.data != old.data or self.binaryData != old.binaryData or not self.immutable):
            return [Cause("FieldValueForbidden", "the config map is immutable", "data")]
        return []
