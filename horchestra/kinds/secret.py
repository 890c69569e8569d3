"""Secret (core/v1): encrypted at rest, values never in tables, audit or logs."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from pydantic import Field

from horchestra.apimachinery.errors import Cause
from horchestra.apimachinery.meta import APIObject
from horchestra.apimachinery.registry import Column, Resource

MAX_BYTES = 1024 * 1024
REQUIRED_KEYS = {
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/basic-auth": (),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}


class Secret(APIObject):
    """Values that applications read as environment variables or files, and credentials for registries."""

    resource = Resource(
        group="",
        version="v1",
        kind="Secret",
        plural="secrets",
        singular="secret",
        strategic_merge=True,
        encrypted=True,
        columns=(
            Column("Type", lambda o: o.get("type", "Opaque"), description="What the keys mean"),
            Column("Data", lambda o: len(o.get("data") or {}), type="integer", description="Number of keys"),
        ),
        field_selectors={"type": "type"},
    )

    type: str = "Opaque"
    """What the keys mean: Opaque, kubernetes.io/dockerconfigjson, kubernetes.io/tls, ..."""
    data: dict[str, str] = Field(default_factory=dict)
    """Values by key, base64."""
    stringData: dict[str, str] = Field(default_factory=dict)
    """Values by key as plain text; written into data and never read back."""
    immutable: bool = False
    """When true, data cannot change any more."""

    @classmethod
    def prepare(cls, obj: dict[str, Any]) -> None:
        plain = obj.get("stringData")
        if not isinstance(plain, dict) or not all(isinstance(v, str) for v in plain.values()):
            return
        del obj["stringData"]
        if plain:
            data = obj.get("data")
            if data is not None and not isinstance(data, dict):
                return  # refused by its type
            data = obj["data"] = dict(data or {})
            data.update({k: base64.b64encode(v.encode()).decode() for k, v in plain.items()})

    def validate_object(self) -> list[Cause]:
        causes = []
        total = 0
        for key, value in self.data.items():
            try:
                total += len(base64.b64decode(value, validate=True))
            except (binascii.Error, ValueError):
                causes.append(
                    Cause("FieldValueInvalid", "is not base64; use stringData for plain text", f"data[{key}]")
                )
        if total > MAX_BYTES:
            causes.append(Cause("FieldValueTooLong", f"{total} bytes; at most {MAX_BYTES} are allowed", "data"))
        causes += [
            Cause("FieldValueRequired", f"a secret of type {self.type} needs it", f"data[{key}]")
            for key in REQUIRED_KEYS.get(self.type, ())
            if key not in self.data
        ]
        return causes

    def validate_update(self, old: Secret) -> list[Cause]:
        causes = []
        if self.type != old.type:
            causes.append(Cause("FieldValueInvalid", "field is immutable", "type"))
        if old.immutable and (self.data != old.data or not self.immutable):
            causes.append(Cause("FieldValueForbidden", "the secret is immutable", "data"))
        return causes
