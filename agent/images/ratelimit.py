"""One gate per registry host: when it says "not now", every pull on this node waits, not only the one that was told."""

import random
import threading
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from agent.errors import AgentError
from agent.images.abort import Abort

MAX_DELAY = 3600.0  # a registry cannot shut a node out for longer than this with one answer
PATIENCE = 30.0  # what a pull waits for in place; a longer wait is reported and left to the caller's next try
_FIRST_DELAY = 1.0
_MAX_BACKOFF = 60.0


class RegistryGates:
    """Shared by all clients of a process; times are on the monotonic clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed_until: dict[str, float] = {}
        self._strikes: dict[str, int] = {}

    def close(self, host: str, told: float | None) -> float:
        """Shuts the gate for `told` seconds, or with a doubling back-off when no time was given; returns the wait.

        Jitter is added, so that a fleet told the same second does not come back in the same second.
        """
        with self._lock:
            strikes = self._strikes[host] = self._strikes.get(host, 0) + 1
            base = min(told, MAX_DELAY) if told is not None else min(_FIRST_DELAY * 2 ** (strikes - 1), _MAX_BACKOFF)
            delay = base + random.uniform(0, min(base * 0.2, 5.0))
            until = max(self._closed_until.get(host, 0.0), time.monotonic() + delay)
            self._closed_until[host] = until
            return until - time.monotonic()

    def open(self, host: str) -> None:
        """Forgets the strikes after an answer that was not a refusal."""
        with self._lock:
            self._strikes.pop(host, None)

    def remaining(self, host: str) -> float:
        """Seconds until `host` may be asked again; 0 when it may now."""
        with self._lock:
            return max(0.0, self._closed_until.get(host, 0.0) - time.monotonic())

    def enter(self, host: str, abort: Abort) -> None:
        """Waits until the gate opens. Raises AgentError RegistryRateLimited when that is longer than `PATIENCE`."""
        while delay := self.remaining(host):
            if delay > PATIENCE:
                raise rate_limited(host, delay)
            abort.wait(delay)


def rate_limited(host: str, delay: float) -> AgentError:
    until = datetime.fromtimestamp(time.time() + delay, UTC).strftime("%H:%M:%S")
    return AgentError("RegistryRateLimited", f"{host}: rate-limited until {until} UTC", retry_after=delay)


def retry_after(header: str | None) -> float | None:
    """Seconds a Retry-After header asks for (RFC 9110 10.2.3; fractions occur); None when absent or unreadable."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = parsedate_to_datetime(header)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - time.time()
    return max(0.0, seconds) if seconds == seconds else None
