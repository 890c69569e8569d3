"""Where the lab keeps what it makes: everything under the git-ignored `.horchestra/` of the project."""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
STATE = PROJECT / ".horchestra"
CACHE = STATE / "cache"
RUNS = STATE / "lab"
VENV = STATE / "venv"
