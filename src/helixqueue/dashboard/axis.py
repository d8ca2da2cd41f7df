"""The time axis that all lanes of a timeline share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from helixqueue.dashboard import formats

_STEPS = [
    *(part * scale for scale in (0.001, 0.01, 0.1) for part in (1, 2, 5)),
    *(1, 2, 5, 10, 15, 30),
    *(minutes * 60 for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * 3_600 for hours in (1, 2, 3, 6, 12)),
    *(days * 86_400 for days in (1, 2, 7, 14, 30, 90, 180, 365)),
]
_TICKS = 6


@dataclass(frozen=True, slots=True)
class Axis:
    """From `start` to `end`, with a tick every `step` seconds of the clock."""

    start: datetime
    end: datetime
    step: float

    @classmethod
    def around(cls, first: datetime, last: datetime) -> Axis:
        """An axis for a period: rounded outward, to a fifth of a step at its start."""
        first = first.astimezone(UTC)
        last = max(last.astimezone(UTC), first + timedelta(milliseconds=1))
        span = (last - first).total_seconds()
        longest = _STEPS[-1] * math.ceil(span / (_TICKS - 1) / _STEPS[-1])
        step = next((step for step in _STEPS if span / step <= _TICKS - 1), longest)
        return cls(_floor(first, step / 5), _ceil(last, step), step)

    def at(self, time: datetime) -> float:
        """The position of a time, in percent of the axis."""
        position = 100 * ((time - self.start) / (self.end - self.start))
        return round(min(max(position, 0), 100), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Positions of the ticks and what to write there."""
        times: list[datetime] = []
        time = _ceil(self.start, self.step)
        while time <= self.end:
            times.append(time)
            time += timedelta(seconds=self.step)
        return [(self.at(time), self._show(time)) for time in times]

    def clock(self, time: datetime) -> str:
        """A time as labels show it: with its day or its milliseconds where the axis needs them."""
        time = time.astimezone(UTC)
        if self.start.date() != self.end.date():
            return f"{time.day} {time:%b %H:%M}"
        return formats.exact(time) if self.step < 1 else f"{time:%H:%M:%S}"

    def _show(self, time: datetime) -> str:
        if self.step < 1:
            return formats.exact(time)
        if self.step < 60:
            return f"{time:%H:%M:%S}"
        if self.step < 86_400 and self.start.date() == self.end.date():
            return f"{time:%H:%M}"
        return f"{time.day} {time:%b}" if self.step >= 86_400 else f"{time.day} {time:%b %H:%M}"


def _floor(time: datetime, step: float) -> datetime:
    """The last multiple of `step` since the beginning of the year."""
    origin = datetime(time.year, 1, 1, tzinfo=UTC)
    length = timedelta(seconds=step)
    return origin + (time - origin) // length * length


def _ceil(time: datetime, step: float) -> datetime:
    floor = _floor(time, step)
    return floor if floor == time else floor + timedelta(seconds=step)
