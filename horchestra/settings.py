"""Django settings of the controller. Everything comes from the environment:

HORCHESTRA_DATA_DIR  database, keys and certificates of this controller (default /var/lib/horchestra-controller)
DATABASE_URL         postgresql://USER:PASSWORD@HOST:PORT/NAME?sslmode=... instead of SQLite in the data directory
"""

import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

DATA_DIR = Path(os.environ.get("HORCHESTRA_DATA_DIR", "/var/lib/horchestra-controller"))


def sqlite(path: Path) -> dict[str, Any]:
    """Durable on commit (synchronous=FULL), readers never wait for the writer (WAL), the write lock taken at BEGIN."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA journal_size_limit=67108864;",
        },
    }


_LIBPQ = {
    # A replica that hangs with the counter's lock, or whose host is gone, holds up the others for seconds only.
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25000,
    "options": "-c lock_timeout=20s -c idle_in_transaction_session_timeout=20s",
}


def postgresql(url: str) -> dict[str, Any]:
    """From a URL as libpq knows it; the query's parameters are handed to libpq. Raises ValueError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its words may hold a piece of the password
        message = "DATABASE_URL cannot be read; in user and password write '/', '@', ':' and brackets as %2F, %40, ..."
        raise ValueError(message) from None
    if parts.scheme not in ("postgres", "postgresql"):
        scheme = f"begins with {parts.scheme}://" if "://" in url and parts.scheme else "has no scheme"
        raise ValueError(f"DATABASE_URL {scheme}; it must be postgresql://USER:PASSWORD@HOST:PORT/NAME")
    options: dict[str, Any] = {**_LIBPQ, **dict(parse_qsl(parts.query))}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(options.pop("host", parts.hostname or "")),
        "PORT": str(port or options.pop("port", "")),
        "OPTIONS": options,
    }


def _database() -> dict[str, Any]:
    url = os.environ.get("DATABASE_URL")
    try:
        return postgresql(url) if url else sqlite(DATA_DIR / "db.sqlite3")
    except ValueError as error:
        sys.exit(str(error))


DATABASES = {"default": _database()}
INSTALLED_APPS = ["horchestra.storage", "horchestra.pki", "horchestra"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
SECRET_KEY = "unused: this process signs nothing with it"  # noqa: S105
LOGGING_CONFIG = None
