"""Objects, the revision log and the counter with its lineage."""

import uuid
from typing import Any

from django.db import migrations, models


def start_counting(apps: Any, schema_editor: Any) -> None:
    counter = apps.get_model("storage", "Counter")
    counter.objects.create(id=1, value=0, compacted=0, lineage=str(uuid.uuid4()))


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Counter",
            fields=[
                ("id", models.SmallIntegerField(primary_key=True, serialize=False)),
                ("value", models.BigIntegerField()),
                ("compacted", models.BigIntegerField()),
                ("lineage", models.CharField(max_length=36)),
            ],
            options={"db_table": "horchestra_counter"},
        ),
        migrations.CreateModel(
            name="Revision",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("type", models.CharField(max_length=8)),
                ("resource", models.CharField(max_length=320)),
                ("namespace", models.CharField(max_length=253)),
                ("name", models.CharField(max_length=253)),
                ("uid", models.CharField(max_length=36)),
                ("created", models.BigIntegerField()),
                ("body", models.BinaryField()),
                ("previous", models.BinaryField(null=True)),
            ],
            options={"db_table": "horchestra_revision"},
        ),
        migrations.CreateModel(
            name="StoredObject",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "resource",
                        "namespace",
                        "name",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("resource", models.CharField(max_length=320)),
                ("namespace", models.CharField(max_length=253)),
                ("name", models.CharField(max_length=253)),
                ("uid", models.CharField(max_length=36)),
                ("revision", models.BigIntegerField()),
                ("body", models.BinaryField()),
            ],
            options={"db_table": "horchestra_object"},
        ),
        migrations.RunPython(start_counting, migrations.RunPython.noop),
    ]
