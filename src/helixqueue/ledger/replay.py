"""Replay: fold the ledger and compare the result with where the tables say batches stand (G4).

Everything is read in one snapshot, so traffic need not stop. The fold is Python's own: a session
that sees every tenant asks the database for entries, never for a verdict about them. It reads the
ledger once, in the order of entries, and keeps one head per batch (see `fold` for the memory).

A tenant's session cannot read whole entries, because they contain steps of other tenants. It
replays page by page of its batches, along the links between their steps, and the database says for
each entry whether the hash matches. So does a service, one stretch per request; an entry that is
wrong is reported by each page that has a batch of it.

What a replay cannot see: a tail of entries that was cut off together with the rows that knew it.
That takes signed heads of the chain, kept elsewhere.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

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

STEPS_PER_PAGE = 100_000  # some 8 MB of arrays
ENTRIES_MAX = 10_000  # of a page; the function returns no more
FIRST_PAGE = 100
STANDING_BATCHES = 10_000
CHAIN_BATCHES = 1_000
_ARRAY_OIDS = {"int8[]": 1016, "int4[]": 1007, "int2[]": 1005, "bytea[]": 1001}


class StoredState(NamedTuple):
    """Batches of one state, as parallel arrays."""

    reached: int  # the last batch of this page
    retired: bool
    working: bool  # they have a row of work
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
    """What a replay read and what was wrong. `violations` keeps the first `limit` of `violated`."""

    events: int = 0
    batches: int = 0  # that stand somewhere
    retired: int = 0  # that have a tombstone
    violated: int = 0
    violations: list[Violation] = field(default_factory=list)
    stopped_at: int | None = None  # the last batch that was replayed, when there may be more

    @property
    def clean(self) -> bool:
        return self.violated == 0

    def note(self, found: list[Violation], limit: int) -> None:
        self.violated += len(found)
        self.violations += found[: max(limit - len(self.violations), 0)]
        found.clear()


def estimate(connection: Connection[Any]) -> int:
    """About how many events there are, without counting them."""
    with snapshot(connection):
        row = connection.execute(_sql("estimate")).fetchone()
    return 0 if row is None else int(row[0])


def sees_every_tenant(connection: Connection[Any]) -> bool:
    """Whether this connection reads everything, or only the rows of some tenants."""
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
    role. `batches` asks for one stretch: so many batches after the batch `after`; it ends earlier,
    between two pages, when `seconds` have passed. `enter` begins the transaction, for connections
    that serve many tenants.
    """
    replayed = ReplayResult()
    with snapshot(connection, enter):
        if batches is None and _sees_every_tenant(connection):
            _replay_whole(connection, replayed, progress, limit)
        else:
            deadline = time.monotonic() + seconds
            most = math.inf if batches is None else batches
            _replay_pages(connection, replayed, progress, limit, (after, most, deadline))
    return replayed


def _replay_whole(
    connection: Connection[Any],
    replayed: ReplayResult,
    progress: Callable[[int], None] | None,
    limit: int,
) -> None:
    folded = Fold()
    for page in _ledger(connection):
        for entry in page:
            folded.add(entry)
        replayed.note(folded.violations, limit)
        replayed.events = folded.events
        if progress is not None:
            progress(folded.events)
    after = 0
    while standing := _standing(connection, after, STANDING_BATCHES):
        after = standing[0].reached
        replayed.note(_compare(folded, standing, replayed), limit)
    replayed.note([_nowhere(batch, head) for batch, head in folded.heads.items()], limit)


def _replay_pages(
    connection: Connection[Any],
    replayed: ReplayResult,
    progress: Callable[[int], None] | None,
    limit: int,
    stretch: tuple[int, float, float],
) -> None:
    after, left, deadline = stretch
    while left > 0:
        size = int(min(left, CHAIN_BATCHES))
        standing = _standing(connection, after, size)
        if not standing:
            replayed.stopped_at = None
            return
        folded = Fold()
        for entry in _chains(connection, after, size):
            folded.add(entry)
        replayed.note(folded.violations, limit)
        replayed.note(_compare(folded, standing, replayed), limit)
        replayed.events += folded.events
        after = replayed.stopped_at = standing[0].reached
        left -= size
        if progress is not None:
            progress(replayed.events)
        if time.monotonic() > deadline:
            return


def _ledger(connection: Connection[Any]) -> Iterator[list[LedgerEntry]]:
    """The whole ledger in pages of about as many steps."""
    place = {"id": 0, "part": 0, "limit": FIRST_PAGE}
    while page := _entries(connection, "entries", place):
        yield page
        steps = sum(len(entry.batch or b"") // 12 - 1 for entry in page)  # 12 bytes each, 20 ahead
        size = min(max(STEPS_PER_PAGE * len(page) // max(steps, 1), 1), ENTRIES_MAX)
        place = {"id": page[-1].id, "part": page[-1].part, "limit": size}


def _chains(connection: Connection[Any], after: int, size: int) -> list[LedgerEntry]:
    return _entries(connection, "chains", {"after": after, "limit": size})


def _entries(connection: Connection[Any], name: str, place: dict[str, int]) -> list[LedgerEntry]:
    with _raw_cursor(connection) as cursor:
        return list(map(LedgerEntry._make, cursor.execute(_sql(name), place, binary=True)))


def _standing(connection: Connection[Any], after: int, size: int) -> list[StoredState]:
    with _raw_cursor(connection) as cursor:
        rows = cursor.execute(_sql("standing"), {"after": after, "limit": size}, binary=True)
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


def _compare(folded: Fold, page: list[StoredState], replayed: ReplayResult) -> list[Violation]:
    """Compare heads with where their batches stand, and drop them."""
    found: list[Violation] = []
    for rows in page:
        batches = integers(INT8, rows.batch)
        if rows.retired:
            replayed.retired += len(batches)
        else:
            replayed.batches += len(batches)
        stands = zip(
            integers(INT8, rows.entry),
            integers(INT4, rows.version),
            integers(INT2, rows.attempt),
            integers(INT4, rows.queue),
            integers(INT8, rows.number),
            integers(INT4, rows.epoch),
            strict=True,
        )
        pop = folded.heads.pop
        plain = rows.working != rows.retired
        known = _known(rows)
        for batch, stand in zip(batches, stands, strict=True):
            head = pop(batch, None)
            if (
                plain
                and head is not None
                and head.standing[:known] == stand[:known]
                and head.state == rows.state
                and (rows.retired or not head.archived)
            ):
                continue
            found += _examine(folded, batch, head, rows, stand)
    return found


def _examine(
    folded: Fold, batch: int, head: Head | None, rows: StoredState, stand: tuple[int, ...]
) -> Iterator[Violation]:
    """Name everything that is wrong with where one batch stands."""
    entry, version, attempt, *_ = stand
    if rows.retired:
        if rows.working:
            yield Violation(
                Kind.REMAINS, batch, f"batch {batch}: was retired, and still has a row of work"
            )
            return
        if entry in folded.archived and (head is None or head.standing[0] < entry):
            return
    elif not rows.working:
        if head is not None:
            yield _nowhere(batch, head)
        else:
            yield Violation(Kind.NOWHERE, batch, f"batch {batch}: has no row of work and no step")
        return
    says = "was retired" if rows.retired else "stands"
    if head is None:
        yield Violation(
            Kind.UNTOLD,
            batch,
            f"batch {batch}: {says} as {rows.state}, version {version}, but the ledger has no step",
        )
        return
    known = _known(rows)
    if (head.state, head.standing[:known]) != (rows.state, stand[:known]):
        yield Violation(
            Kind.STANDING,
            batch,
            f"batch {batch}: {says} as {rows.state}, version {version}, attempt {attempt}; its "
            f"steps lead to {head.state}, version {head.version}, attempt {head.attempt}"
            + ("" if head.standing[3] == stand[3] else ", in another queue")
            + ("" if head.standing[4:known] == stand[4:known] else ", under another token"),
        )
    if head.archived and not rows.retired:
        yield Violation(
            Kind.ARCHIVED, batch, f"batch {batch}: is not retired, but a step of it is archived"
        )


def _known(rows: StoredState) -> int:
    """How many numbers of `Head.standing` these rows have; a tombstone has no token."""
    return 4 if rows.retired else 6


def _nowhere(batch: int, head: Head) -> Violation:
    return Violation(
        Kind.NOWHERE,
        batch,
        f"batch {batch}: its steps lead to {head.state}, version {head.version}, but no row says "
        "where it stands",
    )


def document(violation: Violation, *, entries: bool = True) -> dict[str, Any]:
    """As JSON. `entries`: also numbers of entries, which tell of the calls of all tenants."""
    witness = violation.witness
    return {
        "kind": violation.kind,
        "batch": violation.batch,
        "message": violation.message,
        "witnesses": [] if witness is None else [_step(witness, entries=entries)],
    }


def _step(step: Step, *, entries: bool) -> dict[str, Any]:
    try:
        when = moment(step.at).isoformat()
    except OverflowError:  # infinity, or a year beyond the calendar: the entry was forged
        when = f"{step.at} microseconds after 2000-01-01"
    hidden = () if entries else ("entry", "part", "before")
    return {name: value for name, value in step._asdict().items() if name not in hidden} | {
        "at": when
    }
