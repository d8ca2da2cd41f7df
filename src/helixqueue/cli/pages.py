"""Reads lists page by page: a service returns at most 500 rows per page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helixqueue.cli import show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE_ROWS: Final = 500


def read_all(read: Callable[..., Any]) -> Iterator[Any]:
    """Every row of a list, of which `read` returns a page."""
    after = None
    while True:
        page = read(after=after, limit=PAGE_ROWS)
        yield from page.rows
        after = page.next
        if after is None:
            return


def gather(
    read: Callable[..., Any], limit: int | None, after: str | None
) -> tuple[list[Any], str | None]:
    """Up to `limit` rows after a cursor, and the cursor of the next row; None: every row.

    A page may be short or empty although more rows match, because one read examines a bounded
    number of rows. So this reads on until it has `limit` rows or reaches the end.
    """
    rows: list[Any] = []
    while True:
        left = PAGE_ROWS if limit is None else limit - len(rows)
        page = read(after=after, limit=min(left, PAGE_ROWS))
        rows += page.rows
        after = page.next
        if after is None or len(rows) == limit:
            return rows, after


def print_next(cursor: str | None) -> None:
    if cursor is not None:
        show.progress(f"more: --after {cursor}")
