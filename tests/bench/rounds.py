"""Paired rounds: what is compared runs turn by turn, so that a slower minute of the machine slows both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Pairs:
    """One measurement of each side per round."""

    baseline: Sequence[float]
    ours: Sequence[float]

    @property
    def ratio(self) -> float:
        """Median of ours / baseline over the rounds."""
        return median(ours / baseline for ours, baseline in zip(self.ours, self.baseline, strict=True))

    @property
    def spread(self) -> str:
        """The rounds' smallest and largest ratio, so that a reader sees how far to trust the median."""
        ratios = sorted(ours / baseline for ours, baseline in zip(self.ours, self.baseline, strict=True))
        return f"rounds {ratios[0]:.2f}…{ratios[-1]:.2f}"


def paired(baseline: Callable[[], float], ours: Callable[[], float], rounds: int) -> Pairs:
    """Measure both sides `rounds` times; who goes first changes from round to round. The sides return their figure."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            found[side].append((baseline, ours)[side]())
    return Pairs(*found)
