"""What a bench found, and the table that `make bench` prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from tests.bench.rounds import Pairs


class Rule(StrEnum):
    """What a bar limits."""

    RATIO_AT_MOST = "ratio ≤"
    RATIO_AT_LEAST = "ratio ≥"
    OVER_BASELINE_AT_MOST = "baseline +"
    AT_MOST = "≤"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line: our figure and the baseline's, both in `unit`, medians of paired rounds of one run.

    `ratio` is the median of the rounds' ratios, or None when the bar is absolute and nothing was compared.
    """

    name: str
    unit: str
    ours: float
    baseline: float | None
    ratio: float | None
    rule: Rule
    bar: float
    remark: str = ""

    @classmethod
    def of_pairs(cls, name: str, unit: str, pairs: Pairs, rule: Rule, bar: float) -> Figure:
        """The medians of paired rounds and what their ratios spread over."""
        ours, baseline = median(pairs.ours), median(pairs.baseline)
        return cls(name, unit, ours, baseline, pairs.ratio, rule, bar, pairs.spread)

    @property
    def met(self) -> bool:
        match self.rule:
            case Rule.RATIO_AT_MOST:
                return self.ratio is not None and self.ratio <= self.bar
            case Rule.RATIO_AT_LEAST:
                return self.ratio is not None and self.ratio >= self.bar
            case Rule.OVER_BASELINE_AT_MOST:
                return self.baseline is not None and self.ours - self.baseline <= self.bar
            case Rule.AT_MOST:
                return self.ours <= self.bar

    def cells(self) -> tuple[str, ...]:
        """The columns of TITLES as text."""
        of_ratio = self.rule in (Rule.RATIO_AT_MOST, Rule.RATIO_AT_LEAST)
        bar = f"{self.rule} {self.bar:g}" if of_ratio else f"{self.rule} {_quantity(self.bar, self.unit)}"
        return (
            self.name,
            _quantity(self.ours, self.unit),
            "" if self.baseline is None else _quantity(self.baseline, self.unit),
            "" if self.ratio is None else f"{self.ratio:.2f}",
            bar,
            "yes" if self.met else "NO",
            self.remark,
        )


TITLES = ("NAME", "OURS", "BASELINE", "RATIO", "BAR", "MET", "")


def table(figures: Iterable[Figure]) -> str:
    """All figures, aligned."""
    rows = [TITLES, *(figure.cells() for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(TITLES))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _quantity(value: float, unit: str) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"
