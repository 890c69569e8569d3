"""How far back the history of changes reaches."""

from __future__ import annotations

from collections import deque

HISTORY = 900.0
"""Seconds a change can be watched from, at least."""


class History:
    """Decides which revisions may be forgotten, by a monotonic clock: a clock that is set forward forgets nothing."""

    def __init__(self, seconds: float = HISTORY) -> None:
        self._seconds = seconds
        self._marks: deque[tuple[float, int]] = deque()

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return max(0.05, self._seconds / 15)

    def loaded(self, changes: list[tuple[int, int]], wall: int, monotonic: float) -> None:
        """`changes`: (milliseconds since the epoch, revision) found at start. One dated in the future counts as new."""
        self._marks.clear()
        step = int(self.interval * 1000)
        last = None
        for created, revision in changes:
            age = max(0, wall - created)
            if last is None or created // step != last:
                last = created // step
                self._marks.append((monotonic - age / 1000, revision))
        if changes:
            self._marks.append((monotonic, changes[-1][1]))

    def horizon(self, revision: int, monotonic: float) -> int | None:
        """Notes that `revision` is the newest now; the revision up to which all is old enough to forget, if any."""
        self._marks.append((monotonic, revision))
        old = None
        while self._marks and self._marks[0][0] <= monotonic - self._seconds:
            old = self._marks.popleft()[1]
        return old
