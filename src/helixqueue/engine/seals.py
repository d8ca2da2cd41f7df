"""Seals that services made: the last one, which the next continues, and the earlier ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from helixqueue.engine.cursors import LAST_ID, after_number
from helixqueue.postgres.call import Call
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.page import Page
from helixqueue.records.seal import SealRow

if TYPE_CHECKING:
    from helixqueue.postgres.call import Row

_SQL = sql_texts("helixqueue.engine", "seals.sql")


def list_seals(*, after: str | None, limit: int) -> Call[Page[SealRow]]:
    """A page of seals, newest first, without their documents."""

    def read(rows: list[Row]) -> Page[SealRow]:
        shown = tuple(_read(row) for row in rows[:limit])
        return Page(shown, str(shown[-1].number) if len(rows) > limit else None)

    return Call(_SQL["seals"], (after_number(after, LAST_ID), limit + 1, False), read)


def find_seal(*, number: int | None) -> Call[SealRow | None]:
    """One seal with its document; without a number the last."""

    def read(rows: list[Row]) -> SealRow | None:
        found = _read(rows[0]) if rows else None
        return None if found is None or number not in {None, found.number} else found

    return Call(_SQL["seals"], (LAST_ID if number is None else number + 1, 1, True), read)


def add_seal(
    *, number: int, actor: str | None, digest: str, to_position: str, document: str
) -> Call[None]:
    args = (number, actor, bytes.fromhex(digest), int(to_position), document)
    return Call(_SQL["add_seal"], args, lambda _: None)


def _read(row: Row) -> SealRow:
    number, at, actor, digest, to_position, document = row
    content = None if document is None else json.loads(document)
    return SealRow(number, at, actor, digest.hex(), str(to_position), content)
