"""Modules here reach Django's models when they are imported."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "horchestra.settings")
django.setup()
