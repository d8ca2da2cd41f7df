"""Interleaved rounds: a figure and its reference are taken back to back, and the median counts.

The speed of a disk and the load of a machine change from minute to minute. A ratio of two figures
taken within seconds is not affected, and the median of several removes outliers.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Round:
    """One pass over all rows of the table."""

    commits_per_second: float  # raw, 1 client: the rate of the disk in this round
    load: float
    ratios: dict[str, float] = field(default_factory=dict)
    figures: dict[str, dict[str, float]] = field(default_factory=dict)

    def note(self, row: str, ratio: float, **figures: float) -> None:
        self.ratios[row] = ratio
        self.figures[row] = figures


@dataclass(frozen=True)
class Pair:
    ours: float
    reference: float

    @property
    def ratio(self) -> float:
        return self.ours / self.reference


def side_by_side(
    ours: Callable[[], float], reference: Callable[[], float], *, ours_first: bool
) -> Pair:
    """Measure both back to back; the order alternates from round to round."""
    if ours_first:
        mine = ours()
        return Pair(mine, reference())
    other = reference()
    return Pair(ours(), other)


def load_average() -> float:
    return os.getloadavg()[0]


def medians(rounds: list[Round]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """The median ratio of each row, and of each of its absolute figures."""
    ratios: dict[str, list[float]] = defaultdict(list)
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for round_ in rounds:
        for row, ratio in round_.ratios.items():
            ratios[row].append(ratio)
        for row, named in round_.figures.items():
            for name, value in named.items():
                figures[row][name].append(value)
    return (
        {row: median(values) for row, values in ratios.items()},
        {row: {n: median(v) for n, v in named.items()} for row, named in figures.items()},
    )
