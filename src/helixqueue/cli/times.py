"""Times on the command line: ISO 8601, relative to now (`2h` ago, `+2h` ahead), or durations."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

_SPAN = re.compile(r"(\+?)(\d{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str) -> datetime:
    """A time with its zone; a time without zone is local."""
    if match := _SPAN.fullmatch(text.strip()):
        span = timedelta(**{_UNITS[match[3]]: int(match[2])})
        return datetime.now(UTC) + (span if match[1] else -span)
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            "expected a time such as 2026-03-01T08:00, 2h (two hours ago) or +2h (in two hours), "
            f"got {text[:80]!a}"
        ) from None


def each_moment(text: str) -> Callable[[], datetime]:
    """What returns the time, and for a relative one another at each call."""
    moment(text)
    return partial(moment, text)


def span(text: str) -> float:
    """A duration in seconds: `90s`, `2h`, `30d`; 0 for `forever`."""
    if text.strip() in {"ever", "forever"}:
        return 0.0
    match = _SPAN.fullmatch(text.strip())
    if match is None or match[1] or int(match[2]) == 0:
        raise typer.BadParameter(
            f"expected a duration such as 12h or 30d, or forever, got {text[:80]!a}"
        )
    return timedelta(**{_UNITS[match[3]]: int(match[2])}).total_seconds()


def to_milliseconds(time: datetime | None) -> str:
    """Local time with milliseconds."""
    return "" if time is None else f"{time.astimezone():%Y-%m-%d %H:%M:%S}.{time:%f}"[:23]


def to_seconds(time: datetime | None) -> str:
    """Local time with seconds, for lists."""
    return to_milliseconds(time)[:19]


def ago(time: datetime | None) -> str:
    """A time relative to now, for people: `5 min ago`, `in 2 h`."""
    if time is None:
        return ""
    seconds = (datetime.now(UTC) - time).total_seconds()
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if abs(seconds) >= 2 * length or unit == "s":
            span = f"{abs(seconds) / length:.0f} {unit}"
            break
    return f"{span} ago" if seconds >= 0 else f"in {span}"


def without_date(time: datetime | None, after: datetime) -> str:
    """Local time with milliseconds, without the date if it is the date of `after`."""
    same = time is not None and time.astimezone().date() == after.astimezone().date()
    return to_milliseconds(time)[11:] if same else to_milliseconds(time)


def with_zone(time: datetime | None) -> str:
    return "" if time is None else time.astimezone().isoformat(" ", "milliseconds")
