"""Django application: the table of issued node certificates."""

from django.apps import AppConfig


class PkiConfig(AppConfig):
    name = "horchestra.pki"
    label = "pki"
