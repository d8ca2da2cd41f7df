"""Times on the command line: ISO 8601, how long ago (`90s`, `2h`, `3d`), or in how long (`+2h`)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

_SPAN = re.compile(r"(\+?)(\d{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str) -> datetime:
    """A time with its zone; without one it is the local time of whoever types."""
    if found := _SPAN.fullmatch(text.strip()):
        span = timedelta(**{_UNITS[found[3]]: int(found[2])})
        return datetime.now(UTC) + (span if found[1] else -span)
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            "expected a time such as 2026-03-01T08:00, how long ago such as 2h or 3d, or in how "
            f"long such as +2h; got {text[:80]!a}"
        ) from None


def span(text: str) -> float:
    """How long, in seconds: `90s`, `2h`, `30d`, or `ever`, which is 0."""
    if text.strip() in {"ever", "forever"}:
        return 0.0
    found = _SPAN.fullmatch(text.strip())
    if found is None or found[1] or int(found[2]) == 0:
        raise typer.BadParameter(
            f"expected how long, such as 12h or 30d, or ever; got {text[:80]!a}"
        )
    return timedelta(**{_UNITS[found[3]]: int(found[2])}).total_seconds()


def shown(when: datetime | None) -> str:
    """In the time zone of whoever reads, to the millisecond."""
    return "" if when is None else f"{when.astimezone():%Y-%m-%d %H:%M:%S}.{when:%f}"[:23]


def seconds(when: datetime | None) -> str:
    """As `shown`, for lists."""
    return shown(when)[:19]


def clock(when: datetime | None, after: datetime) -> str:
    """As `shown`, without the date where that is the same."""
    same = when is not None and when.astimezone().date() == after.astimezone().date()
    return shown(when)[11:] if same else shown(when)


def full(when: datetime | None) -> str:
    """With the zone."""
    return "" if when is None else when.astimezone().isoformat(" ", "milliseconds")
