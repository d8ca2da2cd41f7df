"""Cursors of pages: decodes the `next` of the previous page into arguments of a statement."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from helixqueue.errors import Refused
from helixqueue.identity import PART_SEPARATOR, check_name
from helixqueue.records.ledger import FeedRow, LedgerRow
from helixqueue.records.page import Page

if TYPE_CHECKING:
    from collections.abc import Sequence

Named = TypeVar("Named", LedgerRow, FeedRow)
PAGE_ROWS_MAX: Final = 1_000
INT4_MAX: Final = 2**31 - 1
_LAST_ID: Final = 2**63 - 1


def demand_page(limit: int) -> None:
    if not 1 <= limit <= PAGE_ROWS_MAX:
        raise Refused(f"expected a page of 1 to {PAGE_ROWS_MAX} rows, got {limit}")


def after_time(after: str | None, until: datetime | None) -> dict[str, Any]:
    """Start after the previous page or at `until`, whichever is earlier."""
    at, last = _read_cursor(after)
    if until is not None and (isinstance(at, str) or until <= at):
        at, last = until, 0
    return {"at": at, "id": last}


def _read_cursor(after: str | None) -> tuple[datetime | str, int]:
    if after is None:
        return "infinity", _LAST_ID
    try:
        at, _, last = after.partition("~")
        when, number = datetime.fromisoformat(at), int(last)
        if when.tzinfo is None or not 0 <= number <= _LAST_ID:
            raise ValueError(after)
    except ValueError:
        raise _invalid_cursor(after) from None
    return when, number


def _invalid_cursor(after: str) -> Refused:
    return Refused(
        f"expected the `next` of an earlier page, got {after[:80]!r}; start again without a cursor"
    )


def after_number(after: str | None, first: int, most: int = _LAST_ID) -> int:
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
    return {"life": after_number(after, _LAST_ID)}


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
