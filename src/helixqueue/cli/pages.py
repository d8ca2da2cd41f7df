"""Lists that are longer than a page: a service gives at most 500 rows at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helixqueue.cli import show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from helixqueue.cli.connection import Reached

PAGE_ROWS: Final = 500
LIMIT_MAX: Final = 100_000


def every(there: Reached, read: Callable[..., Any]) -> Iterator[Any]:
    """All rows there are."""
    after = None
    while True:
        page = there.run(read(after=after, limit=PAGE_ROWS))
        yield from page.rows
        after = page.next
        if after is None:
            return


def as_many(
    there: Reached, read: Callable[..., Any], limit: int, after: str | None
) -> tuple[list[Any], str | None]:
    """So many rows behind a cursor, and the cursor of the next.

    Fewer, where a page looked at all that a page looks at: the cursor says that there may be more.
    """
    rows: list[Any] = []
    while True:
        asked = min(limit - len(rows), PAGE_ROWS)
        page = there.run(read(after=after, limit=asked))
        rows += page.rows
        after = page.next
        if after is None or len(page.rows) < asked or len(rows) == limit:
            return rows, after


def tell_more(onward: str | None) -> None:
    if onward is not None:
        show.progress(f"more: --after {onward}")
