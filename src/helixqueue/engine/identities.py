"""Reads about identities: refused ones, and those of a queue, in which twins are searched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helixqueue.engine.calls import identity_parts
from helixqueue.engine.cursors import LAST_ID, after_number, after_place, place_text
from helixqueue.postgres.call import Call
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.identity import RefusedIdentityRow, StoredIdentity
from helixqueue.records.page import Page

if TYPE_CHECKING:
    from helixqueue.postgres.call import Row

_SQL = sql_texts("helixqueue.engine", "identities.sql")


def refused(
    *, tenant: str | None, queue: str, after: str | None = None, limit: int = 50
) -> Call[Page[RefusedIdentityRow]]:
    """Refused identities of a queue, newest first."""
    before = after_number(after, LAST_ID)

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
    at, last = after_place(after, ("-infinity", 0))

    def read(rows: list[Row]) -> Page[StoredIdentity]:
        shown = rows[:limit]
        cursor = place_text(shown[-1][:2]) if len(rows) > limit else None
        return Page(
            tuple(
                StoredIdentity(batch_id, identity_parts(text), identity_parts(raw))
                for _, _, batch_id, text, raw in shown
                if text is not None
            ),
            cursor,
        )

    return Call(_SQL["identities"], (tenant, queue, at, last, limit + 1), read)
