"""Calls about dead letters and intakes, described like those of calls.py; SQL in letters.sql."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from helixqueue.engine.arrays import numbers, texts
from helixqueue.engine.calls import read_submitted
from helixqueue.engine.cursors import LAST_ID, after_number, demand_page, scanned_page
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.letter import IntakeRow, IntakeState, LetterRow, StoredLetter

if TYPE_CHECKING:
    from helixqueue.records.letter import NewLetter
    from helixqueue.records.page import Page
    from helixqueue.records.submission import Source, SubmissionRow, SubmittedRow

STALE_SECONDS = 30.0  # without a report for so long, an intake counts as gone
_SQL = sql_texts("helixqueue.engine", "letters.sql")
# How many letters a page scans for those that pass its filters.
_ROWS_SCANNED = 1_000
Answer = Literal["ok", "repeat", "refused"]


def write_letters(
    *,
    tenant: str,
    kind: str,
    name: str,
    letters: Sequence[NewLetter],
    actor: str | None = None,
    keep_seconds: float = 0,
) -> Call[list[int | None]]:
    """Write letters; None for a vanished entry that had been processed before."""
    columns = (
        texts([letter.source for letter in letters]),
        texts([letter.queue for letter in letters]),
        texts([letter.reason for letter in letters]),
        texts([letter.detail for letter in letters]),
        _bytes([letter.body for letter in letters]),
        numbers([letter.size for letter in letters]),
        _bytes([letter.digest for letter in letters]),
        _bytes([letter.key for letter in letters]),
    )
    return Call(
        _SQL["write"],
        (tenant, actor, kind, name, *columns, keep_seconds),
        lambda rows: [letter for (letter,) in rows],
    )


def _bytes(values: Sequence[bytes | None]) -> str | None:
    return texts([None if value is None else rf"\x{value.hex()}" for value in values])


def count_try(*, tenant: str, source: Source) -> Call[int]:
    """Count a try of an entry that is processed alone; returns the number of tries."""
    return Call(_SQL["count_try"], (tenant, *source), lambda rows: int(rows[0][0]))


def clear_tries(*, tenant: str, source: Source) -> Call[None]:
    return Call(_SQL["clear_tries"], (tenant, *source), lambda _: None)


def report_intake(
    *,
    tenant: str,
    stream: str,
    group: str,
    consumer: str,
    started_at: datetime,
    problem: str | None,
    figures: Mapping[str, Any],
    ended: bool = False,
) -> Call[None]:
    return Call(
        _SQL["report"],
        (tenant, stream, group, consumer, started_at, problem, json.dumps(figures), ended),
        lambda _: None,
    )


def redrive_letter(
    *,
    letter: int,
    reason: str,
    queue: str,
    profile: str,
    row: SubmissionRow,
    actor: str | None = None,
) -> Call[SubmittedRow]:
    """Submit the message of a letter and close the letter, in one transaction."""
    return Call(
        _SQL["redrive"],
        (
            *(letter, actor, reason, queue, profile, row.identity, row.payload, row.raw),
            *(row.revision, row.priority),
        ),
        lambda rows: read_submitted(rows)[0],
    )


def discard_letters(
    *, letters: Sequence[int], reason: str, actor: str | None = None
) -> Call[dict[int, Answer]]:
    """Discard letters; the answer of each is ok, repeat or refused."""
    return Call(_SQL["discard"], (numbers(letters), actor, reason), dict)


def letters(
    *,
    tenant: str | None,
    status: str | None = None,
    reason: str | None = None,
    queue: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Call[Page[LetterRow]]:
    """Read a page of letters, newest first."""
    demand_page(limit)
    args = {
        "tenant": tenant,
        "status": status,
        "reason": reason,
        "queue": queue,
        "before": after_number(after, LAST_ID),
        "look": max(_ROWS_SCANNED, limit + 1),
        "limit": limit + 1,
    }

    return Call(_SQL["letters"], args, lambda rows: scanned_page(rows, 1, limit, _read_letter))


def letter(letter: int, *, body: bool = False) -> Call[StoredLetter | None]:
    return Call(
        _SQL["letter"],
        {"letter": letter, "body": body},
        lambda rows: StoredLetter(_read_letter(rows[0][1:]), rows[0][0]) if rows else None,
    )


def intakes(*, tenant: str | None) -> Call[list[IntakeRow]]:
    """List intakes as they last reported; of all tenants of the login without `tenant`."""
    return Call(
        _SQL["intakes"],
        {"tenant": tenant},
        lambda rows: [_read_intake(row) for row in rows],
    )


def _read_letter(row: Row) -> LetterRow:
    return LetterRow(*row)


def _read_intake(row: Row) -> IntakeRow:
    tenant, stream, group, consumer, started_at, seen_at, ended_at, age, problem, figures = row
    state: IntakeState
    if ended_at is not None:
        state = "stopped"
    elif age > STALE_SECONDS:
        state = "gone"
    else:
        state = "reading" if problem is None else "waiting"
    return IntakeRow(
        *(tenant, stream, group, consumer, started_at, seen_at, ended_at, age, problem),
        figures=json.loads(figures),
        state=state,
    )
