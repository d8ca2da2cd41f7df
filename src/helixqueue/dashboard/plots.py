"""Time series as SVG, drawn on the server.

Positions on the x axis are percentages: a plot fills its panel and its texts keep their size. A
path has no percentages, so paths stand in a nested <svg> that is stretched. Colours come from
classes of the stylesheet; nothing has an inline style.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from markupsafe import Markup

from helixqueue.dashboard.formats import number, tick

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

Kind = Literal["area", "line", "bars"]
_FOOT = 22  # pixels below the plot, for the times
_TICKS = 5


class Series(NamedTuple):
    """One value per step of time; None: nothing was measured, and the line is interrupted."""

    name: str
    kind: Kind
    values: Sequence[float | None]
    style: str = ""  # further classes: thin, ok, bad, ...


class Mark(NamedTuple):
    """Something that happened at a time, such as the silence of a worker."""

    at: datetime
    words: str


def plot(
    title: str,
    series: Sequence[Series],
    start: datetime,
    end: datetime,
    *,
    height: int = 160,
    marks: Sequence[Mark] = (),
    show: Callable[[float], str] | None = None,
) -> Markup:
    """Draw series over the time from `start` to `end`; `show` writes a value of the y axis."""
    show = show or _plain
    top = round_up(max((value for line in series for value in line.values if value), default=0))
    body = height - _FOOT
    grid = (0.5 + round(body * line / 2) for line in range(3))
    lines = Markup().join(
        Markup('<line class="grid" x2="100%" y1="{0}" y2="{0}"/>').format(y) for y in grid
    )
    words = Markup("").join(
        Markup('<text x="0" y="{}">{}</text>').format(y + 14, show(value))
        for y, value in ((0, top), (round(body / 2), top / 2))
    )
    return Markup(
        '<svg class="plot" height="{height}" role="img" aria-label="{label}">{lines}'
        '<svg width="100%" height="{body}" viewBox="0 0 100 100" preserveAspectRatio="none">'
        "{paths}</svg>{words}{marks}{times}</svg>"
    ).format(
        height=height,
        label=_in_words(title, series, start, end, show),
        lines=lines,
        body=body,
        paths=Markup().join(_paths(line, top) for line in series),
        words=words,
        marks=Markup().join(_mark(mark, start, end, body) for mark in marks),
        times=_times(start, end, height - 4),
    )


def slots(busy: int, total: int, *, alive: bool = True) -> Markup:
    """One square per slot of a worker; a filled one is busy. Many slots are one number."""
    shown = min(total, 32)
    squares = Markup().join(
        Markup(
            '<rect x="{}" y="1.5" width="8" height="8" rx="1.5" fill="{}" stroke="currentColor"/>'
        ).format(place * 11 + 0.5, "currentColor" if place * total < busy * shown else "none")
        for place in range(shown)
    )
    return Markup(
        '<svg class="{}" width="{}" height="11" role="img" aria-label="{}">{}</svg>'
    ).format("accent" if alive else "faint", shown * 11, f"{busy} of {total} slots busy", squares)


def round_up(value: float) -> float:
    """The next of 1, 2, 4, 6, 8 or 10 times a power of ten: its half is a round number, too."""
    if value <= 2:
        return 2.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value)


def _paths(series: Series, top: float) -> Markup:
    style = f" {series.style}" if series.style else ""
    if series.kind == "bars":
        return Markup('<path class="bars{}" d="{}"/>').format(style, _bars(series.values, top))
    drawn = Markup()
    for run in _runs(series.values, top):
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in run)
        if series.kind == "area":
            drawn += Markup('<path class="area{}" d="M{:.1f} 100L{}L{:.1f} 100Z"/>').format(
                style, run[0][0], line, run[-1][0]
            )
        drawn += Markup('<path class="line{}" d="M{}"/>').format(style, line)
    return drawn


def _runs(values: Sequence[float | None], top: float) -> list[list[tuple[float, float]]]:
    """The points of each uninterrupted part of a line; a single point is a short line."""
    width = 100 / max(len(values) - 1, 1)
    runs: list[list[tuple[float, float]]] = [[]]
    for place, value in enumerate(values):
        if value is not None:
            runs[-1].append((place * width, 100 - value * 100 / top))
        elif runs[-1]:
            runs.append([])
    return [run if len(run) > 1 else _dash(*run[0]) for run in runs if run]


def _dash(x: float, y: float) -> list[tuple[float, float]]:
    """A point as a short line inside the plot."""
    start = min(x, 99.0)
    return [(start, y), (start + 1, y)]


def _bars(values: Sequence[float | None], top: float) -> str:
    width = 100 / max(len(values), 1)
    return "".join(
        f"M{place * width:.2f} 100v{-max(value * 100 / top, 1):.1f}h{width * 0.7:.2f}V100Z"
        for place, value in enumerate(values)
        if value
    )


def _mark(mark: Mark, start: datetime, end: datetime, body: int) -> Markup:
    x = 100 * (mark.at - start) / (end - start)
    if not 0 <= x <= 100:
        return Markup()
    anchor, dx = ("end", -6) if x > 50 else ("start", 6)
    return Markup(
        '<line class="mark" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="{1}"/>'
        '<text class="warn" x="{0:.2f}%" dx="{2}" y="14" text-anchor="{3}">{4}</text>'
    ).format(x, body, dx, anchor, mark.words)


def _times(start: datetime, end: datetime, y: int) -> Markup:
    drawn = Markup()
    before = ""
    for place in range(_TICKS):
        words = tick(start + (end - start) * place / (_TICKS - 1), end - start)
        if words == before:  # of the same day
            continue
        before = words
        anchor = "start" if place == 0 else "end" if place == _TICKS - 1 else "middle"
        drawn += Markup('<text{} x="{:g}%" y="{}" text-anchor="{}">{}</text>').format(
            Markup(' class="minor"') if place % 2 else "",
            place * 100 / (_TICKS - 1),
            y,
            anchor,
            words,
        )
    return drawn


def _in_words(
    title: str,
    series: Sequence[Series],
    start: datetime,
    end: datetime,
    show: Callable[[float], str],
) -> str:
    """The picture as a sentence: what a reader who does not see it needs to know."""
    parts = []
    for line in series:
        values = [value for value in line.values if value is not None]
        if values:
            last = show(values[-1])
            parts.append(
                f"{line.name} from {show(min(values))} to {show(max(values))}, last {last}"
            )
    period = f"{title}, {tick(start, end - start)} to {tick(end, end - start)}"
    return f"{period}: {'; '.join(parts)}" if parts else f"{period}: nothing recorded"


def _plain(value: float) -> str:
    return number(value) if value == int(value) else f"{value:,.1f}"
