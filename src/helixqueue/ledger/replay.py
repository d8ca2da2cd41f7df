"""Replay: folds the ledger and compares the result with the states in the tables (G4).

Everything is read in one snapshot, so traffic can continue. The fold is implemented in Python: a
session that sees every tenant reads entries from the database and trusts no verdict about them. It
reads the ledger once, in the order of entries, and keeps one head per batch (see `fold` for the
memory).

A tenant's session cannot read whole entries, because they contain steps of other tenants. It
replays its batches page by page, along the links between their steps, and the database verifies the
hash of each entry. So does a service, one range per request. A wrong entry is reported by each page
that has one of its batches.

A replay cannot detect that the last entries were removed together with the rows that refer to them.
That takes signed heads of the chain, stored elsewhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryLoader

from helixqueue.ledger.chain import INT8, LedgerEntry, integers, moment
from helixqueue.ledger.fold import Fold, Head, Kind, Step, Violation, fold
from helixqueue.postgres.snapshot import snapshot
from helixqueue.postgres.statements import statements

if TYPE_CHECKING:
    from psycopg import Connection, Cursor
    from psycopg.abc import Buffer

# About 200 KB of arrays: what the socket holds, so that the server does not wait for the reader.
STEPS_PER_PAGE = 5_000
ENTRIES_MAX = 10_000  # of a page; the SQL function returns no more
FIRST_PAGE = 100
STATE_BATCHES = 10_000
CHAIN_BATCHES = 1_000
_ARRAY_OIDS = {"int8[]": 1016, "int4[]": 1007, "int2[]": 1005, "bytea[]": 1001}

_Row = TypeVar("_Row")


class StoredState(NamedTuple):
    """The stored state of one or more batches."""

    reached: int  # the last batch of this page
    retired: bool
    has_work: bool  # they have a row in helix.work
    state: str | None
    entry: int
    version: int
    attempt: int
    queue: int
    number: int
    epoch: int
    batch: bytes

    @property
    def position(self) -> tuple[int, ...]:
        """As in `Head.position`; a tombstone has no token."""
        return self[4:8] if self.retired else self[4:10]


# A statement of replay.sql, and what its rows are.
Query = tuple[str, Callable[..., _Row]]
ENTRIES: Query[LedgerEntry] = ("entries", LedgerEntry)
CHAINS: Query[LedgerEntry] = ("chains", LedgerEntry)
STATES: Query[StoredState] = ("stored_states", StoredState)


COUNTS = ("events", "batches", "retired", "violated")


@dataclass(slots=True)
class ReplayResult:
    """The result of a replay. `violations` keeps the first `limit` of `violated`."""

    events: int = 0
    batches: int = 0  # that are not retired
    retired: int = 0  # that have a tombstone
    violated: int = 0
    violations: list[Violation] = field(default_factory=list)
    stopped_at: int | None = None  # the last batch that was replayed, when there may be more

    @property
    def clean(self) -> bool:
        return self.violated == 0

    def add(self, violations: list[Violation], limit: int) -> None:
        self.violated += len(violations)
        self.violations += violations[: max(limit - len(self.violations), 0)]
        violations.clear()

    def document(self, *, entries: bool = True) -> dict[str, Any]:
        """As JSON. `entries`: with numbers of entries, which count calls of all tenants."""
        counts = {name: getattr(self, name) for name in COUNTS}
        return counts | {
            "violations": [_document(item, entries=entries) for item in self.violations]
        }


def estimate(connection: Connection[Any]) -> int:
    """Estimate the number of events without counting them."""
    with snapshot(connection):
        row = connection.execute(_sql("estimate")).fetchone()
    return 0 if row is None else int(row[0])


def sees_every_tenant(connection: Connection[Any]) -> bool:
    """Return whether this connection sees the rows of all tenants."""
    with snapshot(connection):
        return _sees_every_tenant(connection)


def replay(
    connection: Connection[Any],
    *,
    progress: Callable[[int], None] | None = None,
    limit: int = 1000,
    after: int = 0,
    batches: int | None = None,
    seconds: float = math.inf,
    enter: Callable[[Connection[Any]], None] | None = None,
) -> ReplayResult:
    """Fold the ledger; `progress` is called with the number of events read, page by page.

    Batches of tenants that the connection's role may not see are not replayed: use an operator's
    role. `batches` limits the replay to that many batches after the batch `after`; it stops
    earlier, between two pages, after `seconds`. `enter` begins the transaction on connections that
    serve many tenants.
    """
    result = ReplayResult()
    with snapshot(connection, enter):
        if batches is None and _sees_every_tenant(connection):
            replay_within(connection, result, progress, limit)
        else:
            deadline = time.monotonic() + seconds
            count = math.inf if batches is None else batches
            _replay_pages(connection, result, progress, limit, (after, count, deadline))
    return result


def replay_within(
    connection: Connection[Any],
    result: ReplayResult,
    progress: Callable[[int], None] | None,
    limit: int,
) -> None:
    """Replay the whole ledger inside the transaction of the connection."""
    folded = Fold()
    with connection.pipeline():
        for page in _ledger(connection):
            for entry in page:
                folded.add(entry)
            result.add(folded.violations, limit)
            result.events = folded.events
            if progress is not None:
                progress(folded.events)
        for states in _states(connection):
            result.add(_compare(folded, states, result), limit)
    result.add([_no_work_row(batch, head) for batch, head in folded.heads.items()], limit)


def _replay_pages(
    connection: Connection[Any],
    result: ReplayResult,
    progress: Callable[[int], None] | None,
    limit: int,
    batch_range: tuple[int, float, float],
) -> None:
    after, left, deadline = batch_range
    while left > 0:
        size = int(min(left, CHAIN_BATCHES))
        page = {"after": after, "limit": size}
        states = _read(connection, STATES, page)
        if not states:
            result.stopped_at = None
            return
        folded = fold(_read(connection, CHAINS, page))
        result.add(folded.violations, limit)
        result.add(_compare(folded, states, result), limit)
        result.events += folded.events
        after = result.stopped_at = states[0].reached
        left -= size
        if progress is not None:
            progress(result.events)
        if time.monotonic() > deadline:
            return


def _ledger(connection: Connection[Any]) -> Iterator[list[LedgerEntry]]:
    """Read the whole ledger in pages of about STEPS_PER_PAGE steps."""

    def after(page: list[LedgerEntry]) -> dict[str, int]:
        # 12 bytes for each step, 20 before the first.
        steps = sum(len(entry.batch or b"") // 12 - 1 for entry in page)
        size = min(max(STEPS_PER_PAGE * len(page) // max(steps, 1), 1), ENTRIES_MAX)
        return {"id": page[-1].id, "part": page[-1].part, "limit": size}

    first = {"id": 0, "part": 0, "limit": FIRST_PAGE}
    return _read_ahead(connection, ENTRIES, first, after)


def _states(connection: Connection[Any]) -> Iterator[list[StoredState]]:
    """Read the stored states of all batches in pages of STATE_BATCHES."""

    def after(page: list[StoredState]) -> dict[str, int]:
        return {"after": page[0].reached, "limit": STATE_BATCHES}

    return _read_ahead(connection, STATES, {"after": 0, "limit": STATE_BATCHES}, after)


def _read_ahead(
    connection: Connection[Any],
    query: Query[_Row],
    first: dict[str, int],
    after: Callable[[list[_Row]], dict[str, int]],
) -> Iterator[list[_Row]]:
    """Read pages until one is empty; the server makes the next one while the caller uses this one.

    Needs a pipeline. A thread that reads ahead would wait for the interpreter lock whenever data
    arrive, up to 5 ms each time.
    """
    statement, row_type = query
    with _raw_cursor(connection) as cursor:
        cursor.execute(_sql(statement), first, binary=True)
        while page := [row_type(*row) for row in cursor.fetchall()]:
            cursor.execute(_sql(statement), after(page), binary=True)
            yield page


def _read(connection: Connection[Any], query: Query[_Row], args: dict[str, int]) -> list[_Row]:
    statement, row_type = query
    with _raw_cursor(connection) as cursor:
        rows = cursor.execute(_sql(statement), args, binary=True).fetchall()
        return [row_type(*row) for row in rows]


class _RawLoader(Loader):
    """Leaves an array as the bytes that PostgreSQL sent."""

    format = Format.BINARY

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


def _raw_cursor(connection: Connection[Any]) -> Cursor[Any]:
    cursor: Cursor[Any] = connection.cursor()
    # Eight big-endian bytes: as an integer it needs no calendar and can be infinite.
    cursor.adapters.register_loader("timestamptz", Int8BinaryLoader)
    for oid in _ARRAY_OIDS.values():
        cursor.adapters.register_loader(oid, _RawLoader)
    return cursor


def _sees_every_tenant(connection: Connection[Any]) -> bool:
    row = connection.execute(_sql("sees_every_tenant")).fetchone()
    return row is not None and bool(row[0])


def _sql(name: str) -> bytes:
    return statements("helixqueue.ledger", "replay.sql")[name].sql.encode()


def _compare(folded: Fold, page: list[StoredState], result: ReplayResult) -> list[Violation]:
    """Compare heads with the stored states of their batches, and drop the heads."""
    violations: list[Violation] = []
    for stored in page:
        batches = integers(INT8, stored.batch)
        if stored.retired:
            result.retired += len(batches)
        else:
            result.batches += len(batches)
        heads = list(map(folded.heads.pop, batches, repeat(None)))
        if not all(_agrees(head, stored) for head in set(heads)):
            for batch, head in zip(batches, heads, strict=True):
                violations += _examine(folded, batch, head, stored)
    return violations


def _agrees(head: Head | None, stored: StoredState) -> bool:
    return (
        head is not None
        and stored.has_work != stored.retired
        and head.state == stored.state
        and head.position[: len(stored.position)] == stored.position
        and (stored.retired or not head.archived)
    )


def _examine(
    folded: Fold, batch: int, head: Head | None, stored: StoredState
) -> Iterator[Violation]:
    """Yield everything that is wrong with the stored state of one batch."""
    if stored.retired:
        if stored.has_work:
            yield Violation(
                Kind.RETIRED_WORK, batch, f"batch {batch}: was retired but still has a row of work"
            )
            return
        if stored.entry in folded.archived and (head is None or head.position[0] < stored.entry):
            return
    elif not stored.has_work:
        if head is not None:
            yield _no_work_row(batch, head)
        else:
            yield Violation(
                Kind.NO_WORK_ROW, batch, f"batch {batch}: has no row of work and no step"
            )
        return
    verb = "was retired" if stored.retired else "is stored"
    where = f"batch {batch}: {verb} as {stored.state}, version {stored.version}"
    if head is None:
        message = f"{where}, but has no step in the ledger"
        yield Violation(Kind.NO_STEPS, batch, message)
        return
    position = stored.position
    known = len(position)
    if (head.state, head.position[:known]) != (stored.state, position):
        yield Violation(
            Kind.STATE,
            batch,
            f"{where}, attempt {stored.attempt}; its "
            f"steps lead to {head.state}, version {head.version}, attempt {head.attempt}"
            + ("" if head.queue == stored.queue else ", in another queue")
            + ("" if head.position[4:known] == position[4:] else ", under another token"),
        )
    if head.archived and not stored.retired:
        yield Violation(
            Kind.ARCHIVED, batch, f"batch {batch}: is not retired, but a step of it is archived"
        )


def _no_work_row(batch: int, head: Head) -> Violation:
    return Violation(
        Kind.NO_WORK_ROW,
        batch,
        f"batch {batch}: its steps lead to {head.state}, version {head.version}, but it has no row "
        "of work",
    )


def _document(violation: Violation, *, entries: bool) -> dict[str, Any]:
    witness = violation.witness
    return {
        "kind": violation.kind,
        "batch": violation.batch,
        "message": violation.message,
        "witnesses": [] if witness is None else [_step(witness, entries=entries)],
    }


def _step(step: Step, *, entries: bool) -> dict[str, Any]:
    try:
        at = moment(step.at).isoformat()
    except OverflowError:  # infinity, or a year outside the calendar: the entry was forged
        at = f"{step.at} microseconds after 2000-01-01"
    hidden = () if entries else ("entry", "part", "before")
    shown = {name: value for name, value in step._asdict().items() if name not in hidden}
    return shown | {"at": at}
