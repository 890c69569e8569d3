"""`manage.py createnodecert NAME --out FILE --endpoint HOST:PORT`: the bundle that a node joins with."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from horchestra.pki import files, nodes, server
from horchestra.pki.ca import AuthorityError, CertificateAuthority


class Command(BaseCommand):
    help = "Write a bundle (JSON, 0600) that `python -m agent join` installs on a host. The controller may be running."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", help="name of the node, as in spec.nodeName")
        parser.add_argument("--out", type=Path, required=True, help="file to write; it holds a private key")
        parser.add_argument("--endpoint", required=True, help="HOST:PORT under which the node reaches this controller")

    def handle(self, *args: Any, **options: Any) -> None:
        name, out, endpoint = options["name"], options["out"], options["endpoint"]
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise CommandError(f"--endpoint {endpoint!r} is not HOST:PORT; write it as controller.example:6444")
        pki = Path(settings.DATA_DIR) / "pki"
        if not (pki / "ca.pem").exists():
            raise CommandError(f"there is no certificate authority in {pki}; start the controller once (runcontroller)")
        try:
            nodes.check_name(name)
            content = nodes.bundle(CertificateAuthority.load_or_create(pki), name, endpoint)
            files.write(out, content)
        except (ValueError, AuthorityError) as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"cannot write {out}: {error.strerror}") from error
        except DatabaseError as error:
            raise CommandError(f"cannot note the certificate in the controller's database: {error}") from error
        if not server.covers(pki, host.strip("[]")):
            sys.stderr.write(
                f"The controller's certificate does not name {host}: restart it with --server-name {host.strip('[]')}, "
                "or the node will refuse to talk to it.\n"
            )
        self.stdout.write(f"Wrote {out}. Copy it to {name} and run there: python -m agent join {out.name}")
