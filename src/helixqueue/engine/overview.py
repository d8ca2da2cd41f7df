"""Reads of figures over time, late writes and actions, described like those of reads.py."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from unicodedata import normalize
from uuid import UUID

from helixqueue.engine.arrays import texts
from helixqueue.engine.calls import identity_parts
from helixqueue.engine.cursors import LAST_ID, after_place, demand_page, scanned_page
from helixqueue.identity import PART_SEPARATOR
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.overview import (
    PARTS_SHOWN,
    Activity,
    LateWrite,
    Match,
    Overview,
    QueueOverview,
)
from helixqueue.records.series import Period, RollupRow, TimeSeries, figures_of, points_of
from helixqueue.records.waiting import BatchProof, EntryProof, WaitingBatch, why_waiting
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.records.page import Page

_SQL = sql_texts("helixqueue.engine", "overview.sql")
# Length of a step and number of steps, and the length of the rows that are read.
_STEPS: Final[dict[Period, tuple[int, int, int]]] = {
    "1h": (60, 60, 60),
    "6h": (300, 72, 60),
    "1d": (900, 96, 60),
    "7d": (3_600, 168, 3_600),
    "30d": (21_600, 120, 3_600),
}
_ROWS_SCANNED: Final = 1_000
# Fewer digits of an id would match too many batches; a key has 64.
_ID_DIGITS: Final = re.compile(r"[0-9a-f]{6,64}")


def time_series(
    *, tenant: str, queue: str | None, period: Period, now: datetime | None = None
) -> Call[TimeSeries]:
    """Read the figures of a queue, or of all queues, up to the last full minute or this hour.

    The total includes the present minute, which has no point yet.
    """
    step, count, seconds = _STEPS[period]
    now = now or datetime.now(UTC)
    length = timedelta(seconds=seconds)
    end = now - (now - datetime(2000, 1, 1, tzinfo=UTC)) % length
    end += timedelta(0) if seconds == 60 else length
    start = end - timedelta(seconds=step * count)
    args = {
        "tenant": tenant,
        "queue": queue or "",
        "seconds": seconds,
        "since": start,
        "until": datetime(9000, 1, 1, tzinfo=UTC),  # the backlog is counted back from now
    }

    def read(rows: list[Row]) -> TimeSeries:
        kept_at, backlog = rows[0][:2]
        # JSON is read several times faster than arrays.
        found = [
            RollupRow(*row[2:11], *map(json.loads, row[11:])) for row in rows if row[2] is not None
        ]
        within = [row for row in found if row.at < end]
        if backlog is not None:
            backlog -= sum(row.pending for row in found if row.at >= end)
        points = points_of(within, start, step, count, backlog)
        return TimeSeries(queue, period, start, end, step, kept_at, figures_of(found), points)

    return Call(_SQL["rollup"], args, read)


def worker_days(*, tenant: str, workers: Sequence[str]) -> Call[dict[str, tuple[int, int]]]:
    """Read how many batches some workers completed today, and how many attempts failed."""
    args = {"tenant": tenant, "workers": texts(workers)}
    return Call(_SQL["worker_days"], args, lambda rows: {row[0]: (row[1], row[2]) for row in rows})


def overview(*, tenant: str, limit: int = 50) -> Call[Overview]:
    """Read the state of a tenant: its figures, and up to `limit` queues, problems first."""

    def read(rows: list[Row]) -> Overview:
        [row] = rows
        now, kept_at, queues, hour, today, known, workers, *rest = row
        doubt, oldest, letters, findings, reconciled_at = rest
        listed = tuple(_read_queue(item) for item in json.loads(queues or "[]"))
        alive, reported, slots = json.loads(workers)
        return Overview(
            now=now,
            kept_at=kept_at,
            queues=listed,
            more_queues=known - len(listed),
            hour=figures_of(_read_rollup(hour)),
            today=figures_of(_read_rollup(today)),
            workers_alive=alive,
            workers_known=reported,
            slots=None if slots is None else int(slots),
            leased=sum(queue.leased for queue in listed),
            fences_in_doubt=doubt or 0,
            oldest_doubt_seconds=oldest or None,
            letters=letters or 0,
            findings=findings,
            reconciled_at=reconciled_at,
        )

    return Call(_SQL["overview"], {"tenant": tenant, "limit": limit}, read)


def _read_queue(item: Sequence[Any]) -> QueueOverview:
    name, condition, paused, pending, oldest, leased, failed, completed, rows = item
    hour = figures_of(_rollup_rows(rows or []))
    return QueueOverview(
        name, condition, paused, pending, oldest, leased, failed, completed, hour
    )  # fmt: skip


def _read_rollup(text: str | None) -> list[RollupRow]:
    return _rollup_rows(json.loads(text or "[]"))


def _rollup_rows(rows: Sequence[Sequence[Any]]) -> list[RollupRow]:
    return [RollupRow(datetime.fromisoformat(row[0]), *row[1:]) for row in rows]


def refusals(
    *, tenant: str, queue: str | None = None, after: str | None = None, limit: int = 50
) -> Call[Page[LateWrite]]:
    """Read a page of late writes, newest first; without the attempts of their batches."""
    demand_page(limit)
    at, batch, number = after_place(after, ("infinity", LAST_ID, LAST_ID))
    args = {
        "tenant": tenant,
        "queue": queue,
        "at": at,
        "batch": batch,
        "number": number,
        "look": max(_ROWS_SCANNED, limit + 1),
        "limit": limit + 1,
    }

    return Call(_SQL["refusals"], args, lambda rows: scanned_page(rows, 3, limit, _read_refusal))


def _read_refusal(row: Row) -> LateWrite:
    first_at, _, _, *columns, identity, state, finished_at = row
    values: list[Any] = [*columns, identity_parts(identity), State(state), finished_at]
    return LateWrite(first_at, *values)


def activity(*, tenant: str, after: str | None = None, limit: int = 50) -> Call[Page[Activity]]:
    """Read a page of what people and applications did, newest first."""
    demand_page(limit)
    at, last_id = after_place(after, ("infinity", LAST_ID))
    args = {
        "tenant": tenant,
        "at": at,
        "id": last_id,
        "look": max(_ROWS_SCANNED, limit + 1),
        "limit": limit + 1,
    }

    def read(row: Row) -> Activity:
        return Activity(row[0], *row[2:])

    return Call(_SQL["activity"], args, lambda rows: scanned_page(rows, 2, limit, read))


def matches(*, tenant: str, text: str, limit: int = 10) -> Call[list[Match]]:
    """Find what `text` may mean, except samples."""
    key, _, rest = text.lower().rpartition("v1:")
    digits = rest.replace("-", "")
    is_key = len(text) > len(rest) and not key
    # The thirteenth digit of an id is its version.
    known = digits if is_key else digits[:12]
    is_id = _ID_DIGITS.fullmatch(digits) is not None
    is_number = text.isascii() and text.isdecimal() and len(text) <= 18
    args = {
        "tenant": tenant,
        "text": normalize("NFC", text.replace(PARTS_SHOWN, PART_SEPARATOR)),
        "from": bytes.fromhex("01" + known.ljust(64, "0")) if is_id else None,
        "to": bytes.fromhex("01" + known.ljust(64, "f")) if is_id else None,
        "letter": int(text) if is_number else None,
        "limit": limit,
    }

    def read(rows: list[Row]) -> list[Match]:
        found = [Match(*row) for row in rows]
        return [
            match
            for match in found
            if is_key or match.kind != "batch" or match.id.replace("-", "").startswith(digits)
        ]

    return Call(_SQL["search"], args, read)


def batch_proof(batch_id: UUID) -> Call[BatchProof]:
    """Read and verify the ledger entries of a batch's newest steps."""

    def read(rows: list[Row]) -> BatchProof:
        entries = tuple(EntryProof(version, digest.hex(), sound) for version, digest, sound in rows)
        return BatchProof(entries, bool(entries) and all(entry.sound for entry in entries))

    return Call(_SQL["proof"], {"id": batch_id}, read)


def waiting(*, tenant: str, queue: str, limit: int = 50) -> Call[list[WaitingBatch]]:
    """Read the batches of a queue that wait longest, and why."""
    demand_page(limit)

    def read(rows: list[Row]) -> list[WaitingBatch]:
        return [_read_waiting(row) for row in rows]

    return Call(_SQL["waiting"], {"tenant": tenant, "queue": queue, "limit": limit}, read)


def _read_waiting(row: Row) -> WaitingBatch:
    batch_id, identity, since, attempt, cause, due, text, alive, fitting, missing, detail = row
    requires = None if text is None else json.loads(text)
    why = why_waiting(
        cause=cause, due=due, requires=requires, alive=alive, fitting=fitting, missing=missing
    )
    parts = identity_parts(identity)
    return WaitingBatch(
        batch_id, parts, since, attempt, why, requires, alive, fitting, missing, detail
    )  # fmt: skip
