"""Log lines for the journal: a priority prefix, then words; no time, which the journal adds itself."""

from __future__ import annotations

import logging
import os
import sys

_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


class _JournalFormatter(logging.Formatter):
    """sd-daemon(3): "<N>" in front of a line is its priority; a line break would start a new entry."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_PRIORITIES.get(record.levelno, 6)}>"
        return "\n".join(prefix + line for line in super().format(record).splitlines() or [""])


def configure(level: str | None = None) -> None:
    """Log to stderr at `level`, else `$HORCHESTRA_LOG_LEVEL`, else INFO."""
    handler = logging.StreamHandler(sys.stderr)
    journal = "JOURNAL_STREAM" in os.environ
    text = "%(name)s: %(message)s"
    handler.setFormatter(_JournalFormatter(text) if journal else logging.Formatter(f"%(asctime)s %(levelname)s {text}"))
    logging.basicConfig(
        handlers=[handler], level=(level or os.environ.get("HORCHESTRA_LOG_LEVEL") or "INFO").upper(), force=True
    )
