"""`manage.py newlineage`: to be run once after the database was restored from a backup or copied."""

from __future__ import annotations

import uuid
from typing import Any

from django.core.management.base import BaseCommand
from django.db import transaction

from horchestra.storage.models import Counter, Revision

LEAP = 1_000_000
"""Revisions skipped, so that a watch which saw more than the backup holds is told to list again."""


class Command(BaseCommand):
    help = (
        "Starts a new lineage. Run it with the controller stopped, after the database was restored or copied: nodes "
        "then pause until an administrator accepts the new lineage, and every watch lists again."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        with transaction.atomic():
            counter = Counter.objects.select_for_update().get(id=1)
            before = counter.lineage
            counter.lineage = str(uuid.uuid4())
            counter.value += LEAP
            counter.compacted = counter.value
            counter.save()
            Revision.objects.all().delete()
        self.stdout.write(f"lineage {before} ended; the new one is {counter.lineage}")
