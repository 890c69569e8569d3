"""Field numbers of the Kubernetes messages that clients send (k8s.io/api and k8s.io/apimachinery, generated.proto).

A table maps a number to a name, a form and a type: `string`, `int`, `bool`, `bytes` (base64 in JSON), `Time`, or the
name of another table. Numbers that are missing here are passed over.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Form(Enum):
    ONE = "one"
    LIST = "list"
    MAP = "map"


class Field(NamedTuple):
    name: str
    form: Form
    type: str


def _table(text: str) -> dict[int, Field]:
    """`1 name` (a string), `2 count:int`, `3 items[]:Type`, `4 labels{}`, separated by blanks and commas."""
    fields = {}
    for part in text.split(","):
        number, described = part.split()
        name, _, kind = described.partition(":")
        form = Form.LIST if name.endswith("[]") else Form.MAP if name.endswith("{}") else Form.ONE
        fields[int(number)] = Field(name.rstrip("[]{}"), form, kind or "string")
    return fields


MESSAGES: dict[str, dict[int, Field]] = {
    name: _table(text)
    for name, text in {
        "Unknown": "1 typeMeta:TypeMeta, 2 raw:raw, 3 contentEncoding, 4 contentType",
        "TypeMeta": "1 apiVersion, 2 kind",
        "ObjectMeta": (
            "1 name, 2 generateName, 3 namespace, 5 uid, 6 resourceVersion, 7 generation:int, 8 creationTimestamp:Time,"
            "9 deletionTimestamp:Time, 10 deletionGracePeriodSeconds:int, 11 labels{}, 12 annotations{},"
            "13 ownerReferences[]:OwnerReference, 14 finalizers[]"
        ),
        "OwnerReference": "1 kind, 3 name, 4 uid, 5 apiVersion, 6 controller:bool, 7 blockOwnerDeletion:bool",
        "DeleteOptions": (
            "1 gracePeriodSeconds:int, 2 preconditions:Preconditions, 3 orphanDependents:bool, 4 propagationPolicy,"
            "5 dryRun[]"
        ),
        "Preconditions": "1 uid, 2 resourceVersion",
        "Namespace": "1 metadata:ObjectMeta, 2 spec:NamespaceSpec, 3 status:NamespaceStatus",
        "NamespaceSpec": "1 finalizers[]",
        "NamespaceStatus": "1 phase",
        "Secret": "1 metadata:ObjectMeta, 2 data{}:bytes, 3 type, 4 stringData{}, 5 immutable:bool",
        "ConfigMap": "1 metadata:ObjectMeta, 2 data{}, 3 binaryData{}:bytes, 4 immutable:bool",
        "Eviction": "1 metadata:ObjectMeta, 2 deleteOptions:DeleteOptions",
        "SelfSubjectReview": "1 metadata:ObjectMeta",
        "SelfSubjectAccessReview": "1 metadata:ObjectMeta, 2 spec:SelfSubjectAccessReviewSpec",
        "SelfSubjectAccessReviewSpec": (
            "1 resourceAttributes:ResourceAttributes, 2 nonResourceAttributes:NonResourceAttributes"
        ),
        "ResourceAttributes": "1 namespace, 2 verb, 3 group, 4 version, 5 resource, 6 subresource, 7 name",
        "NonResourceAttributes": "1 path, 2 verb",
    }.items()
}
