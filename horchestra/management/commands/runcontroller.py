"""`manage.py runcontroller`: the controller in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from horchestra.process import Settings, StartError, run


class Command(BaseCommand):
    help = "Run the controller. The first start makes the database, a certificate authority and admin.kubeconfig."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--api-bind", type=address, default="127.0.0.1:6443", metavar="HOST:PORT")
        parser.add_argument("--agent-bind", type=address, default="0.0.0.0:6444", metavar="HOST:PORT")
        parser.add_argument(
            "--server-name",
            action="append",
            default=[],
            metavar="NAME",
            help="a further host name or address that clients and nodes use; may be repeated",
        )
        parser.add_argument("--ready-file", type=Path, metavar="FILE", help="written (JSON) when both doors are open")

    def handle(self, *args: Any, **options: Any) -> None:
        logging.basicConfig(
            level=os.environ.get("HORCHESTRA_LOG_LEVEL", "INFO").upper(),
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
            stream=sys.stderr,
        )
        configured = Settings(
            data_dir=Path(settings.DATA_DIR),
            api=options["api_bind"],
            agents=options["agent_bind"],
            server_names=tuple(options["server_name"]),
            ready_file=options["ready_file"],
        )
        try:
            asyncio.run(run(configured))
        except StartError as error:
            raise CommandError(str(error)) from error


def address(text: str) -> tuple[str, int]:
    """HOST:PORT or [IPV6]:PORT."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
