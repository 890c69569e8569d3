"""DATABASE_URL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://localhost/x", "begins with mysql://; it must be postgresql://"),
        ("sec:ret@localhost/x", "has no scheme; it must be postgresql://"),
        ("localhost/x", "has no scheme; it must be postgresql://"),
        ("postgresql://me:sec/ret@localhost/x", "cannot be read"),
        ("postgresql://me:sec[ret@localhost/x", "cannot be read"),
    ],
)
def test_another_database_is_refused_without_showing_the_password(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        postgresql(url)
    assert "sec" not in str(caught.value)


def test_a_wrong_url_ends_the_start_with_one_sentence(tmp_path: Path) -> None:
    env = {**os.environ, "HORCHESTRA_DATA_DIR": str(tmp_path), "DATABASE_URL": "mysql://localhost/x"}
    command = [sys.executable, "manage.py", "runcontroller"]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("DATABASE_URL begins with mysql://")
