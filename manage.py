#!/usr/bin/env python3
"""Management commands of the controller."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "horchestra.settings")
    from django.conf import settings
    from django.core.management import execute_from_command_line

    try:
        settings.DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"cannot make the data directory {settings.DATA_DIR}: {error.strerror}; set HORCHESTRA_DATA_DIR")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
