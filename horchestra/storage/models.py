"""The tables. Only this package reads or writes them."""

from __future__ import annotations

from django.db import models

KIND = 320
"""Longest storage key of a kind: plural, dot, group."""
NAME = 253


class StoredObject(models.Model):
    """The current version of an object."""

    pk = models.CompositePrimaryKey("resource", "namespace", "name")
    resource: models.CharField[str, str] = models.CharField(max_length=KIND)
    """Storage key of the kind: `applications.orch.ks-tool.dev`, `nodes`."""
    namespace: models.CharField[str, str] = models.CharField(max_length=NAME)
    name: models.CharField[str, str] = models.CharField(max_length=NAME)
    uid: models.CharField[str, str] = models.CharField(max_length=36)
    revision: models.BigIntegerField[int, int] = models.BigIntegerField()
    body: models.BinaryField[bytes, bytes] = models.BinaryField()
    """JSON, or an envelope around it."""

    class Meta:
        db_table = "horchestra_object"


class Revision(models.Model):
    """One change; the id is the object's resourceVersion after it."""

    id: models.BigIntegerField[int, int] = models.BigIntegerField(primary_key=True)
    type: models.CharField[str, str] = models.CharField(max_length=8)
    """ADDED | MODIFIED | DELETED"""
    resource: models.CharField[str, str] = models.CharField(max_length=KIND)
    namespace: models.CharField[str, str] = models.CharField(max_length=NAME)
    name: models.CharField[str, str] = models.CharField(max_length=NAME)
    uid: models.CharField[str, str] = models.CharField(max_length=36)
    created: models.BigIntegerField[int, int] = models.BigIntegerField()
    """Milliseconds since the epoch."""
    body: models.BinaryField[bytes, bytes] = models.BinaryField()
    previous: models.BinaryField[bytes | None, bytes | None] = models.BinaryField(null=True)

    class Meta:
        db_table = "horchestra_revision"


class Counter(models.Model):
    """The one row whose lock orders all writes: commit order is revision order."""

    id: models.SmallIntegerField[int, int] = models.SmallIntegerField(primary_key=True)
    value: models.BigIntegerField[int, int] = models.BigIntegerField()
    """The newest revision."""
    compacted: models.BigIntegerField[int, int] = models.BigIntegerField()
    """Revisions up to this one are no longer in the log."""
    lineage: models.CharField[str, str] = models.CharField(max_length=36)
    """Made with the database, and anew after a restore: revisions of two lineages cannot be compared."""

    class Meta:
        db_table = "horchestra_counter"
