"""The table of issued node certificates."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    operations = [
        migrations.CreateModel(
            name="IssuedCertificate",
            fields=[
                ("serial", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("node", models.CharField(db_index=True, max_length=63)),
                ("issued", models.DateTimeField()),
                ("expires", models.DateTimeField()),
                ("machine_id", models.CharField(blank=True, default="", max_length=64)),
            ],
        ),
    ]
