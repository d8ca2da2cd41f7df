"""Reads the ledger as a stream of changes, for clients that follow it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from helixqueue.errors import Refused
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.statements import sql_texts

_SQL = sql_texts("helixqueue.engine", "changes.sql")
CHANGES_MAX = 1_000
SPAN_MAX = 2**61  # positions: more than a database ever has


EPOCH_BITS = 40  # the bits below: the transaction


class ChangeCursor(NamedTuple):
    """The position of a reader: after one event. No event after it is older than `since`."""

    position: int
    batch: int
    version: int
    since: datetime

    @property
    def epoch(self) -> int:
        """The upper bits of a position: one history of the database."""
        return self.position >> EPOCH_BITS


@dataclass(frozen=True, slots=True)
class Change:
    """One event with its position in the stream."""

    position: int
    batch: int
    version: int
    batch_id: UUID
    queue: str
    at: datetime
    from_state: str | None
    to_state: str
    reason: str
    actor: str
    attempt: int
    detail: str | None
    late: bool


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Changes after a cursor.

    Every transaction below `reached` has ended; this read covered those below `edge`.
    """

    rows: tuple[Change, ...]
    reached: int
    edge: int
    now: datetime


def read_changes(
    cursor: ChangeCursor, *, queue: str | None = None, limit: int = 500, span: int = SPAN_MAX
) -> Call[ChangePage]:
    """Read at most `limit` changes of the next `span` transactions."""
    if not 1 <= limit <= CHANGES_MAX:
        raise Refused(f"expected 1 to {CHANGES_MAX} changes, got {limit}")
    args = {
        "position": cursor.position,
        "batch": cursor.batch,
        "version": cursor.version,
        "queue": queue,
        "limit": limit,
        "span": span,
    }

    def read(rows: list[Row]) -> ChangePage:
        changes = tuple(Change(*row[3:]) for row in rows if row[3] is not None)
        return ChangePage(changes, *rows[0][:3])

    return Call(_SQL["changes"], args, read)


def changes_lost(cursor: ChangeCursor) -> Call[bool]:
    """Whether retention removed events after the cursor."""
    args = {name: getattr(cursor, name) for name in ("position", "batch", "version", "since")}
    return Call(_SQL["changes_lost"], args, lambda rows: bool(rows[0][0]))


class ChangeMark(NamedTuple):
    """Every transaction after `position` begins to write after `at`."""

    position: int
    at: datetime


def take_mark() -> Call[ChangeMark]:
    return Call(_SQL["mark"], (), lambda rows: ChangeMark(*rows[0]))
