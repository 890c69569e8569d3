"""Which node certificates this controller has issued, and which machine first used each."""

from __future__ import annotations

from datetime import datetime

from django.db import models


class IssuedCertificate(models.Model):
    """One row per certificate; rows stay for as long as the certificate could be shown."""

    serial: models.CharField[str, str] = models.CharField(max_length=40, primary_key=True)
    """Serial number in hexadecimal (RFC 5280: at most 20 octets)."""
    node: models.CharField[str, str] = models.CharField(max_length=63, db_index=True)
    issued: models.DateTimeField[datetime, datetime] = models.DateTimeField()
    expires: models.DateTimeField[datetime, datetime] = models.DateTimeField()
    machine_id: models.CharField[str, str] = models.CharField(max_length=64, blank=True, default="")
    """machine-id of the host that used it first; another host that shows it is a duplicate."""

    def __str__(self) -> str:
        return f"{self.node} {self.serial}"
