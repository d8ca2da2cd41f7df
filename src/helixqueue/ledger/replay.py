"""Replay: fold every batch of the ledger and compare with where the tables say it stands (G4).

Both are read in one snapshot, so traffic need not stop, and in batch order through server-side
cursors, so memory does not grow with the ledger. The fold is Python's own: the database is asked
for events, never for a verdict about them. Batches are judged one by one, so a stretch of them can
be replayed by itself: a service walks the ledger in such stretches, each in a snapshot.

What it cannot see: a tail of events that was cut off together with the row that knew its version.
That takes the signed heads of the chain.
"""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg.types.numeric import Int8BinaryLoader

from helixqueue.ledger.fold import Folded, Kind, Violation, fold
from helixqueue.store.snapshot import snapshot
from helixqueue.store.statements import statements

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from psycopg import Connection, ServerCursor

    from helixqueue.ledger.chain import Event

# Rows a round trip: some 3 MB, enough that waiting for the server does not show.
FETCH_ROWS = 10_000
XID8_OID = 5069
_LEAST = -(2**63)
_MOST = 2**63  # above every batch: the end of a stream
_batch_of = itemgetter(0)


class Place(NamedTuple):
    batch: int
    tenant: str
    state: str
    version: int
    attempt: int
    place: str
    hash: bytes | None  # of the last event, kept when a batch is retired


@dataclass(slots=True)
class Replayed:
    """What a replay read and what was wrong. `violations` keeps the first `limit` of `violated`."""

    events: int = 0
    batches: int = 0  # folded from their events
    retired: int = 0  # known by their last state only
    violated: int = 0
    violations: list[Violation] = field(default_factory=list)
    stopped_at: int | None = None  # the last batch that was looked at, when the time was up before

    @property
    def clean(self) -> bool:
        return self.violated == 0

    def note(self, folded: Folded | None, places: list[Place], limit: int) -> None:
        """One batch more: what its events lead to, if it has any, and where it stands."""
        if folded is None:
            found = _untold(places)
            self.retired += not found
        else:
            apart = _compare(folded, places) if places else [_nowhere(folded)]
            found = folded.violations + apart
            self.events += folded.events
            self.batches += 1
        self.violated += len(found)
        self.violations += found[: limit - len(self.violations)]


def estimate(connection: Connection[Any]) -> int:
    """About how many events there are, without counting them."""
    with snapshot(connection):
        row = connection.execute(_sql("estimate")).fetchone()
    return 0 if row is None else int(row[0])


def sees_every_tenant(connection: Connection[Any]) -> bool:
    """Whether what this connection reads is all there is, or some tenants' share of it."""
    with snapshot(connection):
        row = connection.execute(_sql("sees_every_tenant")).fetchone()
    return row is not None and bool(row[0])


def last_batch(connection: Connection[Any]) -> int:
    """Where the ledger ends; inside of a transaction."""
    row = connection.execute(_sql("last_batch")).fetchone()
    return 0 if row is None else int(row[0])


def replay(
    connection: Connection[Any],
    *,
    progress: Callable[[int], None] | None = None,
    limit: int = 1000,
    stretch: tuple[int, int] = (_LEAST, _MOST - 1),
    seconds: float = math.inf,
    enter: Callable[[Connection[Any]], None] | None = None,
) -> Replayed:
    """Fold the whole ledger; `progress` is told the number of events read, about every 10,000.

    Rows of tenants that the connection's role may not see are not replayed: use an operator's role.
    `stretch` are the first and the last batch to look at; after so many `seconds` it stops between
    two of them. `enter` begins the transaction, for connections that serve many tenants by turns.
    """
    replayed = Replayed()
    deadline = time.monotonic() + seconds
    told = 0
    looked_at = None
    with (
        snapshot(connection, enter),
        closing(_rows(connection, "events", stretch)) as steps,
        closing(_rows(connection, "places", stretch)) as stands_where,
    ):
        for batch, events, places in _side_by_side(steps, map(Place._make, stands_where)):
            if looked_at is not None and time.monotonic() > deadline:
                replayed.stopped_at = looked_at
                break
            replayed.note(None if events is None else fold(events), places, limit)
            looked_at = batch
            if progress is not None and replayed.events - told >= FETCH_ROWS:
                told = replayed.events
                progress(told)
        if progress is not None and replayed.events > told:
            progress(replayed.events)
    return replayed


def _side_by_side(
    steps: Iterator[Event], stands_where: Iterator[Place]
) -> Iterator[tuple[int, Iterator[Event] | None, list[Place]]]:
    """Batch by batch what the ledger tells of it and where it stands; either may be missing."""
    ledger = groupby(steps, _batch_of)
    places = groupby(stands_where, _batch_of)
    end: tuple[int, Iterator[Any]] = (_MOST, iter(()))
    told, events = next(ledger, end)
    stands, where = next(places, end)
    while (batch := min(told, stands)) < _MOST:
        is_told, is_there = told == batch, stands == batch
        yield batch, events if is_told else None, list(where) if is_there else []
        if is_told:
            told, events = next(ledger, end)
        if is_there:
            stands, where = next(places, end)


def _sql(name: str) -> bytes:
    return statements("helixqueue.ledger", "replay.sql")[name].sql.encode()


def document(violation: Violation, *, details: bool = True) -> dict[str, Any]:
    """As JSON; `details`: also what workers wrote, which may hold anything."""
    return {
        "kind": violation.kind,
        "batch": violation.batch,
        "message": violation.message,
        "witnesses": [
            _step(event) | ({} if details else {"detail": None}) for event in violation.witnesses
        ],
    }


def _step(event: Event) -> dict[str, Any]:
    try:
        when = event.when.isoformat()
    except OverflowError:  # infinity, or a year beyond the calendar: a forger's work
        when = f"{event.at} microseconds after 2000-01-01"
    return event._asdict() | {"at": when, "hash": event.hash.hex()}


def _rows(connection: Connection[Any], name: str, stretch: tuple[int, int]) -> Generator[Event]:
    cursor: ServerCursor[Any]
    with connection.cursor(f"replay_{name}") as cursor:
        # Both are eight big-endian bytes; as integers they need no calendar and know infinity.
        cursor.adapters.register_loader("timestamptz", Int8BinaryLoader)
        cursor.adapters.register_loader(XID8_OID, Int8BinaryLoader)
        cursor.execute(_sql(name), dict(zip(("first", "last"), stretch, strict=True)), binary=True)
        while rows := cursor.fetchmany(FETCH_ROWS):
            yield from rows


def _nowhere(folded: Folded) -> Violation:
    return Violation(
        Kind.NOWHERE,
        folded.batch,
        f"batch {folded.batch}: its {folded.events} events lead to {folded.state}, but it stands "
        "in no table",
    )


def _untold(places: list[Place]) -> list[Violation]:
    """Places without events: right for a retired batch, wrong for every other."""
    first = places[0]
    if len(places) > 1:
        return [_twice(places)]
    if first.place == "retired":
        return []
    return [
        Violation(
            Kind.UNTOLD,
            first.batch,
            f"batch {first.batch}: stands in {first.place} as {first.state}, version "
            f"{first.version}, but the ledger has no event of it",
        )
    ]


def _twice(places: list[Place]) -> Violation:
    return Violation(
        Kind.TWICE,
        places[0].batch,
        f"batch {places[0].batch}: stands in {' and '.join(p.place for p in places)}",
    )


def _compare(folded: Folded, places: list[Place]) -> list[Violation]:
    found = [_twice(places)] if len(places) > 1 else []
    for place in places:
        if place.place == "retired":
            found.append(
                Violation(
                    Kind.REMAINS,
                    folded.batch,
                    f"batch {folded.batch}: was retired as {place.state}, but {folded.events} of "
                    "its events are left",
                )
            )
        elif (place.tenant, place.state, place.version, place.attempt) != (
            folded.tenant,
            folded.state,
            folded.version,
            folded.attempt,
        ):
            found.append(
                Violation(
                    Kind.STANDING,
                    folded.batch,
                    f"batch {folded.batch}: stands in {place.place} as {place.state}, version "
                    f"{place.version}, attempt {place.attempt}, tenant {place.tenant}; its events "
                    f"lead to {folded.state}, version {folded.version}, attempt {folded.attempt}, "
                    f"tenant {folded.tenant}",
                )
            )
    return found
