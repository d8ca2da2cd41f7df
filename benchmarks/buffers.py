"""Pages that a claim touches: a measure of its cost that does not depend on machine load."""

from __future__ import annotations

import json
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks.workload import Client
from helixqueue.postgres.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.arena import Arena
    from helixqueue.records.claim_hints import Hint

SAMPLES = 9
# The first claims of a session read the catalogs and make plans; a worker does that once.
_WARM_UP = 3


def of_claim(dsn: str, count: int, hints: Sequence[Hint] = ()) -> int:
    """Pages touched by one claim, in transactions rolled back."""
    with psycopg.connect(dsn, cursor_factory=psycopg.ClientCursor) as connection:
        taken = [_sample(connection, count, hints) for _ in range(_WARM_UP + SAMPLES)]
    return round(median(taken[_WARM_UP:]))


def marks(client: Client) -> tuple[Hint, ...]:
    """The hints of a client, at a time at which no sweep is due."""
    return client.hints.now(float("-inf"))


def _sample(connection: psycopg.Connection[Any], count: int, hints: Sequence[Hint]) -> int:
    client = Client(Database(connection), "probe")
    # Do the duties that are due and commit, so that the sample does not contain them: a sample is
    # rolled back and would leave them due for all others.
    duties = client.claim(0, ())
    connection.execute(duties.sql.encode(), duties.args)
    connection.commit()
    call = client.claim(count, hints)
    row = connection.execute(
        ("explain (analyze, buffers, format json) " + call.sql).encode(), call.args
    ).fetchone()
    connection.rollback()
    if row is None:
        raise RuntimeError("EXPLAIN returned nothing")
    plan = (json.loads(row[0]) if isinstance(row[0], str) else row[0])[0]["Plan"]
    # The first row is the header of the answer.
    if plan["Actual Rows"] != count + 1:
        raise RuntimeError(f"expected a claim of {count}, got {plan['Actual Rows'] - 1}")
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


@contextmanager
def held_snapshot(arena: Arena, database: str) -> Iterator[None]:
    """Hold a snapshot, as a long report does, so that no dead row can be removed."""
    with arena.admin(database) as connection:
        connection.autocommit = False
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select count(*) from helix.lane")
        yield
        connection.rollback()


def under_snapshot(
    arena: Arena, database: str, *, claims: int, tick: Callable[[int], None]
) -> tuple[int, int, int]:
    """Pages of a hinted claim(10) before and after `claims`; and of an unhinted one, after."""
    dsn = arena.dsn(database)
    with Database.connect(dsn) as connection, held_snapshot(arena, database):
        client = Client(connection, "w0")
        client.drain(100, until=lambda done: done >= 2_000)
        before = of_claim(dsn, 10, marks(client))
        done = 0
        while done < claims:
            more = client.drain(100, until=lambda n: n >= 1_000)
            done += more
            tick(more)
        return before, of_claim(dsn, 10, marks(client)), of_claim(dsn, 10)
