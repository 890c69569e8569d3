"""The object store as a Django application: tables and commands."""

from django.apps import AppConfig


class StorageConfig(AppConfig):
    name = "horchestra.storage"
    label = "storage"
