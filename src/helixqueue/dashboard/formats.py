"""Numbers, durations and times as pages show them. Times are UTC; a page says so once."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_STORED_TIME = re.compile(r"\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d)(\.\d+)?\+00\b")
_TIMES_WORDS = ("never", "once", "twice")


def number(value: float, *, more: bool = False) -> str:
    """`18,204`; `10,000+` where counting stopped at a limit."""
    return f"{value:,.0f}{'+' if more else ''}"


def rate(value: float) -> str:
    """`27.1`: a rate has one decimal."""
    return f"{value:,.1f}"


def duration(seconds: float) -> str:
    """`12 ms`, `0.4 s`, `38 s`, `14m 35s`, `2h 14m`, `3 d`: two units at most."""
    seconds = max(seconds, 0.0)
    if round(seconds * 1000) < 100:
        return f"{round(seconds * 1000)} ms"
    if round(seconds, 1) < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    minutes = whole // 60
    if minutes < 24 * 60:
        return f"{minutes // 60}h {minutes % 60:02}m"
    return f"{minutes // (24 * 60)} d"


def age(seconds: float) -> str:
    """`41 min`, `3 hours`: a duration inside a sentence, in one unit."""
    seconds = max(seconds, 0.0)
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "min")):
        if round(seconds) >= 2 * size or (unit == "min" and round(seconds) >= size):
            count = int(seconds // size)
            return f"{count} {unit}" if unit == "min" else counted(count, unit)
    return f"{round(seconds)} s"


def clock(at: datetime, now: datetime) -> str:
    """`14:21:37` today, `17 Nov 14:21` on another day, with the year in another year."""
    at, now = at.astimezone(UTC), now.astimezone(UTC)
    if at.date() == now.date():
        return f"{at:%H:%M:%S}"
    return f"{at.day} {at:%b %H:%M}" if at.year == now.year else f"{at.day} {at:%b %Y %H:%M}"


def tick(at: datetime, span: timedelta) -> str:
    """`14:21` below a plot of at most two days, `18 Nov` below a longer one."""
    at = at.astimezone(UTC)
    return f"{at:%H:%M}" if span <= timedelta(days=2) else f"{at.day} {at:%b}"


def exact(at: datetime) -> str:
    """`14:21:37.615`, in the ledger."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds")[11:23]


def without_date(text: str) -> str:
    """A detail of the ledger with its times as `exact` shows them: `14:06:41.271`."""
    return _STORED_TIME.sub(lambda found: f"{found[1]}{(found[2] or '.')[:4]:0<4}", text)


def day(at: datetime) -> str:
    """`18 Nov 2026`."""
    return f"{at.astimezone(UTC).day} {at.astimezone(UTC):%b %Y}"


def machine_time(at: datetime) -> str:
    """The attribute `datetime` of a <time>."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 batch`, `18,204 batches`."""
    if count != 1:
        noun = plural or f"{noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"
    return f"{number(count)} {noun}"


def times(count: int) -> str:
    """`once`, `twice`, `12 times`."""
    return _TIMES_WORDS[count] if 0 <= count < len(_TIMES_WORDS) else f"{number(count)} times"


def short_id(identifier: object) -> str:
    """The first eight characters of an id."""
    return str(identifier)[:8]


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
