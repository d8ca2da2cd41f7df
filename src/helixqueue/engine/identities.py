"""Reads about identities: refused ones, and those of a queue, in which twins are searched."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from helixqueue.engine.calls import identity_parts
from helixqueue.errors import Refused
from helixqueue.postgres.call import Call
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.identity import RefusedIdentityRow, StoredIdentity
from helixqueue.records.page import Page

if TYPE_CHECKING:
    from helixqueue.postgres.call import Row

_SQL = sql_texts("helixqueue.engine", "identities.sql")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Final = 2**63 - 1


def refused(
    *, tenant: str, queue: str, after: str | None = None, limit: int = 50
) -> Call[Page[RefusedIdentityRow]]:
    """Refused identities of a queue, newest first."""
    before = _LAST if after is None else _numbers(after, 1)[0]

    def read(rows: list[Row]) -> Page[RefusedIdentityRow]:
        shown = rows[:limit]
        return Page(
            tuple(RefusedIdentityRow(*row[1:]) for row in shown),
            str(shown[-1][0]) if len(rows) > limit else None,
        )

    return Call(_SQL["refused"], (tenant, queue, before, limit + 1), read)


def identities(
    *, tenant: str, queue: str, after: str | None = None, limit: int = 500
) -> Call[Page[StoredIdentity]]:
    """Identities of a queue in the order of their arrival; batches without one are left out."""
    microseconds, last = (0, 0) if after is None else _numbers(after, 2)
    position = _EPOCH + timedelta(microseconds=microseconds)

    def read(rows: list[Row]) -> Page[StoredIdentity]:
        shown = rows[:limit]
        cursor = None
        if len(rows) > limit:
            created_at, number = shown[-1][:2]
            cursor = f"{(created_at - _EPOCH) // timedelta(microseconds=1)}-{number}"
        return Page(
            tuple(
                StoredIdentity(batch_id, identity_parts(text), identity_parts(raw))
                for _, _, batch_id, text, raw in shown
                if text is not None
            ),
            cursor,
        )

    return Call(_SQL["identities"], (tenant, queue, position, last, limit + 1), read)


def _numbers(cursor: str, count: int) -> list[int]:
    parts = cursor.split("-")
    if len(parts) != count or not all(p.isascii() and p.isdigit() and len(p) < 19 for p in parts):
        raise Refused(f"after: expected `next` of the previous page, got {cursor[:80]!a}")
    return [int(part) for part in parts]
