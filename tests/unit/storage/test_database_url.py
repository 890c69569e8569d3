"""DATABASE_URL."""

from __future__ import annotations

import pytest

from horchestra.settings import postgresql


def test_a_url_becomes_a_database() -> None:
    made = postgresql("postgresql://us%40er:p%2Fw@db.example:5433/horch?sslmode=require&connect_timeout=3")
    assert {k: made[k] for k in ("NAME", "USER", "PASSWORD", "HOST", "PORT")} == {
        "NAME": "horch",
        "USER": "us@er",
        "PASSWORD": "p/w",
        "HOST": "db.example",
        "PORT": "5433",
    }
    assert (made["OPTIONS"]["sslmode"], made["OPTIONS"]["connect_timeout"]) == ("require", "3")


def test_a_socket_directory_is_a_host() -> None:
    made = postgresql("postgresql:///horch?host=/run/postgresql")
    assert (made["HOST"], made["PORT"], made["NAME"]) == ("/run/postgresql", "", "horch")


def test_another_database_is_refused() -> None:
    with pytest.raises(ValueError, match="must be postgresql://"):
        postgresql("mysql://localhost/x")
