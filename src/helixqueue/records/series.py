"""Figures over time, from the rollup that a duty keeps (engine/sql/76_rollup.sql)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import accumulate, zip_longest
from typing import Any, Final, Literal

Period = Literal["1h", "6h", "1d", "7d", "30d"]
BUCKETS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Figures:
    """What happened in some time. Times are in seconds; None: nothing was measured."""

    submitted: int = 0  # new batches
    repeated: int = 0  # submissions of a batch that existed
    completed: int = 0
    failed: int = 0  # batches that ended FAILED
    cancelled: int = 0
    lost: int = 0  # leases
    refused: int = 0  # late writes
    wait_p50: float | None = None  # from PENDING to the claim
    wait_p95: float | None = None
    run_p50: float | None = None  # from the start of an attempt until its worker ended it
    run_p95: float | None = None


@dataclass(frozen=True, slots=True)
class SeriesPoint(Figures):
    """The figures of one step of a series, and the backlog at its end."""

    at: datetime | None = None  # begin of the step
    pending: int | None = None  # PENDING batches; None: unknown


@dataclass(frozen=True, slots=True)
class TimeSeries:
    """Figures of one queue, or of all queues, in steps of equal length."""

    queue: str | None
    period: Period
    start: datetime
    end: datetime
    step_seconds: int
    kept_at: datetime | None  # when the duty last ran; None: never
    total: Figures  # with the present minute, which has no point yet
    points: tuple[SeriesPoint, ...]


@dataclass(frozen=True, slots=True)
class RollupRow:
    """A row of the rollup: numbers, and durations by bucket."""

    at: datetime
    submitted: int
    repeated: int
    completed: int
    failed: int
    cancelled: int
    lost: int
    refused: int
    pending: int  # change of the number of PENDING batches
    waits: Sequence[int]
    runs: Sequence[int]


_NUMBERS: Final = (
    "submitted", "repeated", "completed", "failed", "cancelled", "lost", "refused", "pending",
)  # fmt: skip


def sum_of(rows: Sequence[RollupRow], at: datetime) -> RollupRow:
    """Some rows as one that begins at `at`."""
    values: list[Any] = [sum(getattr(row, name) for row in rows) for name in _NUMBERS]
    values += [add_histograms([row.waits for row in rows])]
    values += [add_histograms([row.runs for row in rows])]
    return RollupRow(at, *values)


def figures_of(rows: Sequence[RollupRow]) -> Figures:
    """The figures of some rows together."""
    if not rows:
        return Figures()
    row = rows[0] if len(rows) == 1 else sum_of(rows, rows[0].at)
    return Figures(
        row.submitted, row.repeated, row.completed, row.failed, row.cancelled, row.lost,
        row.refused, quantile(row.waits, 0.5), quantile(row.waits, 0.95), quantile(row.runs, 0.5),
        quantile(row.runs, 0.95),
    )  # fmt: skip


def add_histograms(histograms: Sequence[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*histograms, fillvalue=0)]


def bucket_bounds(bucket: int) -> tuple[float, float]:
    """Seconds: the least of the bucket, and the least of the next one."""
    lower = 0.0 if bucket == 1 else 2 ** ((bucket - 1) / 2) / 1000
    return lower, 2 ** (bucket / 2) / 1000


def quantile(histogram: Sequence[int], share: float) -> float | None:
    """The duration that this share of durations does not exceed; None without any.

    Inside a bucket durations are taken as evenly spread: the error is below the width of a bucket,
    a factor of 1.42.
    """
    sums = list(accumulate(histogram))
    if not sums or not sums[-1]:
        return None
    rank = share * sums[-1]
    place = next(place for place, total in enumerate(sums) if total >= rank and total)
    lower, upper = bucket_bounds(place + 1)
    before = sums[place] - histogram[place]
    inside = (rank - before) / histogram[place] if histogram[place] else 1.0
    return lower + (upper - lower) * min(max(inside, 0.0), 1.0)


def points_of(
    rows: Sequence[RollupRow], start: datetime, step_seconds: int, count: int, backlog: int | None
) -> tuple[SeriesPoint, ...]:
    """The figures of each step.

    `backlog` is the number of PENDING batches at the end; the changes give the others.
    """
    step = timedelta(seconds=step_seconds)
    by_step: list[list[RollupRow]] = [[] for _ in range(count)]
    for row in rows:
        by_step[(row.at - start) // step].append(row)
    sums = [sum_of(found, start + place * step) for place, found in enumerate(by_step)]
    points: list[SeriesPoint] = []
    for row in reversed(sums):
        points.append(SeriesPoint(**asdict(figures_of([row])), at=row.at, pending=backlog))
        if backlog is not None:
            backlog -= row.pending
    return tuple(reversed(points))
