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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryLoader

from helixqueue.ledger.chain import INT2, INT4, INT8, LedgerEntry, integers, moment
from helixqueue.ledger.fold import Fold, Head, Kind, Step, Violation
from helixqueue.postgres.snapshot import snapshot
from helixqueue.postgres.statements import statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg import Connection, Cursor
    from psycopg.abc import Buffer

STEPS_PER_PAGE = 50_000  # about 4 MB of arrays; two pages are in memory
ENTRIES_MAX = 10_000  # of a page; the SQL function returns no more
FIRST_PAGE = 100
STATE_BATCHES = 10_000
CHAIN_BATCHES = 1_000
_ARRAY_OIDS = {"int8[]": 1016, "int4[]": 1007, "int2[]": 1005, "bytea[]": 1001}


_Row = TypeVar("_Row")
_Position = TypeVar("_Position")


class StoredState(NamedTuple):
    """Batches of one state, as parallel arrays."""

    reached: int  # the last batch of this page
    retired: bool
    has_work: bool  # they have a row in helix.work
    state: str | None
    batch: bytes
    queue: bytes
    version: bytes
    attempt: bytes
    entry: bytes
    number: bytes
    epoch: bytes


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
    for page in _ledger(connection):
        for entry in page:
            folded.add(entry)
        result.add(folded.violations, limit)
        result.events = folded.events
        if progress is not None:
            progress(folded.events)
    for states in _read_ahead(
        lambda after: _stored_states(connection, after, STATE_BATCHES),
        0,
        lambda states: states[0].reached,
    ):
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
        states = _stored_states(connection, after, size)
        if not states:
            result.stopped_at = None
            return
        folded = Fold()
        for entry in _chains(connection, after, size):
            folded.add(entry)
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
    return _read_ahead(lambda position: _entries(connection, "entries", position), first, after)


def _read_ahead(
    read: Callable[[_Position], list[_Row]],
    first: _Position,
    after: Callable[[list[_Row]], _Position],
) -> Iterator[list[_Row]]:
    """Read pages until one is empty; a thread reads the next page while the caller uses this one.

    The server and Python then work at the same time, and two pages are in memory.
    """
    with ThreadPoolExecutor(1, "replay") as reader:
        page = read(first)
        while page:
            following = reader.submit(read, after(page))
            yield page
            page = following.result()


def _chains(connection: Connection[Any], after: int, size: int) -> list[LedgerEntry]:
    return _entries(connection, "chains", {"after": after, "limit": size})


def _entries(connection: Connection[Any], name: str, args: dict[str, int]) -> list[LedgerEntry]:
    with _raw_cursor(connection) as cursor:
        return list(map(LedgerEntry._make, cursor.execute(_sql(name), args, binary=True)))


def _stored_states(connection: Connection[Any], after: int, size: int) -> list[StoredState]:
    with _raw_cursor(connection) as cursor:
        rows = cursor.execute(_sql("stored_states"), {"after": after, "limit": size}, binary=True)
        return list(map(StoredState._make, rows))


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
    for rows in page:
        batches = integers(INT8, rows.batch)
        if rows.retired:
            result.retired += len(batches)
        else:
            result.batches += len(batches)
        positions = zip(
            integers(INT8, rows.entry),
            integers(INT4, rows.version),
            integers(INT2, rows.attempt),
            integers(INT4, rows.queue),
            integers(INT8, rows.number),
            integers(INT4, rows.epoch),
            strict=True,
        )
        pop = folded.heads.pop
        is_consistent = rows.has_work != rows.retired
        known = _known(rows)
        for batch, position in zip(batches, positions, strict=True):
            head = pop(batch, None)
            if (
                is_consistent
                and head is not None
                and head.position[:known] == position[:known]
                and head.state == rows.state
                and (rows.retired or not head.archived)
            ):
                continue
            violations += _examine(folded, batch, head, rows, position)
    return violations


def _examine(
    folded: Fold, batch: int, head: Head | None, rows: StoredState, position: tuple[int, ...]
) -> Iterator[Violation]:
    """Yield everything that is wrong with the stored state of one batch."""
    entry, version, attempt, *_ = position
    if rows.retired:
        if rows.has_work:
            yield Violation(
                Kind.RETIRED_WORK, batch, f"batch {batch}: was retired but still has a row of work"
            )
            return
        if entry in folded.archived and (head is None or head.position[0] < entry):
            return
    elif not rows.has_work:
        if head is not None:
            yield _no_work_row(batch, head)
        else:
            yield Violation(
                Kind.NO_WORK_ROW, batch, f"batch {batch}: has no row of work and no step"
            )
        return
    stored = "was retired" if rows.retired else "is stored"
    if head is None:
        yield Violation(
            Kind.NO_STEPS,
            batch,
            f"batch {batch}: {stored} as {rows.state}, version {version}, but has no step in the "
            "ledger",
        )
        return
    known = _known(rows)
    if (head.state, head.position[:known]) != (rows.state, position[:known]):
        yield Violation(
            Kind.STATE,
            batch,
            f"batch {batch}: {stored} as {rows.state}, version {version}, attempt {attempt}; its "
            f"steps lead to {head.state}, version {head.version}, attempt {head.attempt}"
            + ("" if head.position[3] == position[3] else ", in another queue")
            + ("" if head.position[4:known] == position[4:known] else ", under another token"),
        )
    if head.archived and not rows.retired:
        yield Violation(
            Kind.ARCHIVED, batch, f"batch {batch}: is not retired, but a step of it is archived"
        )


def _known(rows: StoredState) -> int:
    """Return how many numbers of `Head.position` these rows have; a tombstone has no token."""
    return 4 if rows.retired else 6


def _no_work_row(batch: int, head: Head) -> Violation:
    return Violation(
        Kind.NO_WORK_ROW,
        batch,
        f"batch {batch}: its steps lead to {head.state}, version {head.version}, but it has no row "
        "of work",
    )


def document(violation: Violation, *, entries: bool = True) -> dict[str, Any]:
    """Return it as JSON. `entries`: with numbers of entries, which count calls of all tenants."""
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
    return {name: value for name, value in step._asdict().items() if name not in hidden} | {
        "at": at
    }
