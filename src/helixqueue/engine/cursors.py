"""Cursors of pages: decodes the `next` of the previous page into arguments of a statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from helixqueue.errors import Refused
from helixqueue.identity import PART_SEPARATOR, check_name
from helixqueue.records.ledger import FeedRow, LedgerRow
from helixqueue.records.page import Page

if TYPE_CHECKING:
    from helixqueue.postgres.call import Row

T = TypeVar("T")
Named = TypeVar("Named", LedgerRow, FeedRow)
PAGE_ROWS_MAX: Final = 1_000
INT4_MAX: Final = 2**31 - 1
LAST_ID: Final = 2**63 - 1


def demand_page(limit: int) -> None:
    if not 1 <= limit <= PAGE_ROWS_MAX:
        raise Refused(f"expected a page of 1 to {PAGE_ROWS_MAX} rows, got {limit}")


def after_time(after: str | None, until: datetime | None) -> dict[str, Any]:
    """Start after the previous page or at `until`, whichever is earlier."""
    at, last = after_place(after, ("infinity", LAST_ID))
    if until is not None and (isinstance(at, str) or until <= at):
        at, last = until, 0
    return {"at": at, "id": last}


def after_place(after: str | None, first: tuple[Any, ...]) -> tuple[Any, ...]:
    """The position of the last row of the previous page, a time and numbers; else `first`."""
    if after is None:
        return first
    try:
        at, *rest = after.split("~")
        when, numbers = datetime.fromisoformat(at), list(map(int, rest))
        fits = len(rest) == len(first) - 1 and all(0 <= number <= LAST_ID for number in numbers)
        if when.tzinfo is None or not fits:
            raise ValueError(after)
    except ValueError:
        raise _invalid_cursor(after) from None
    return when, *numbers


def place_text(place: Sequence[Any]) -> str | None:
    """The cursor of a position; None where there is none."""
    if None in place:
        return None
    return "~".join(v.isoformat() if isinstance(v, datetime) else str(v) for v in place)


def scanned_page(rows: Sequence[Row], width: int, limit: int, read: Callable[[Row], T]) -> Page[T]:
    """A page of a bounded scan, for which one more row than `limit` was read.

    Each row has the end of the scan and its own position, both of `width` columns; the latter is
    null if nothing matched. `read` gets what follows the end of the scan.
    """
    found = [row[width:] for row in rows if row[2 * width - 1] is not None]
    last = found[limit - 1] if len(found) > limit else rows[0] if rows else (None,)
    return Page(tuple(map(read, found[:limit])), place_text(last[:width]))


def _invalid_cursor(after: str) -> Refused:
    return Refused(
        f"expected the `next` of an earlier page, got {after[:80]!r}; start again without a cursor"
    )


def after_number(after: str | None, first: int, most: int = LAST_ID) -> int:
    """The number of the last row of the previous page; `first` for the first page."""
    if after is None:
        return first
    if not (after.isascii() and after.isdecimal() and len(after) <= len(str(most))):
        raise _invalid_cursor(after)
    if int(after) > most:
        raise _invalid_cursor(after)
    return int(after)


def after_life(after: str | None) -> dict[str, int]:
    """For fences, which are listed by the number of their first claim."""
    return {"life": after_number(after, LAST_ID)}


def after_queue(after: str | None) -> dict[str, str]:
    """For queues, ledgers and feeds, which are listed by tenant and name."""
    tenant, _, queue = (after or "").partition("/")
    if after is not None:
        try:
            check_name("tenant", tenant)
            check_name("queue", queue)
        except Refused:
            raise _invalid_cursor(after) from None
    return {"after_tenant": tenant, "after_queue": queue}


def after_worker(after: str | None) -> dict[str, str]:
    """For workers, which are listed by tenant, name and login."""
    parts = ["", "", ""] if after is None else after.split(PART_SEPARATOR)
    if len(parts) != 3:
        raise _invalid_cursor(str(after))
    return dict(zip(("after_tenant", "after_name", "after_role"), parts, strict=True))


def named_page(rows: list[Named], limit: int) -> Page[Named]:
    """A page of ledgers or feeds, of which one more than `limit` was read."""
    last = rows[limit - 1] if len(rows) > limit else None
    return Page(tuple(rows[:limit]), None if last is None else f"{last.tenant}/{last.name}")


def write_position(feed: str, position: Sequence[int]) -> str:
    """A position of a feed as text: transaction, number, version."""
    return f"{feed}/{'.'.join(map(str, position))}"


def read_position(feed: str, text: str) -> list[int]:
    name, _, numbers = text.rpartition("/")
    parts = numbers.split(".")
    fits = all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts)
    if name != feed or len(parts) != 3 or not fits:
        raise Refused(f"expected a position of the feed {feed}, got {text[:80]!r}")
    return list(map(int, parts))
