"""Every invariant as a query: damage that the guards could not prevent is detected here.

The invariants of rows are functions of the database (engine/sql/85_check.sql and the two files
after it), asked set by set through `helix.read_check_v1`: so one text serves operators, for every
row, and tenants, for their own. Those that rest on secrets or on the catalogues are in
`check_secrets.sql` and `check_schema.sql`. Each has its promise, its meaning and its remedy beside
it. They read one snapshot, so traffic need not stop.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from psycopg.errors import InsufficientPrivilege, QueryCanceled

from helixqueue.operate import release
from helixqueue.postgres.snapshot import snapshot
from helixqueue.postgres.statements import statements
from helixqueue.postgres.tenant_sessions import limit_statement_time

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from psycopg import Connection

WITNESSES = 10
LATE = "it did not end in time"  # of an invariant that was skipped for that
LEAST_SECONDS = 0.05  # with less left, an invariant is not begun


@dataclass(frozen=True, slots=True)
class Invariant:
    """`asked` is the set that it belongs to, or the query itself."""

    name: str
    notes: dict[str, str]
    asked: str
    of_set: bool


@dataclass(frozen=True, slots=True)
class Result:
    """One invariant: `count` rows break it, the first of them are `witnesses`."""

    name: str
    promise: str  # G1 to G11, see docs/guarantees.md
    count: int
    meaning: str
    remedy: str
    witnesses: list[dict[str, Any]] = field(default_factory=list)
    skipped: str | None = None  # why the query could not be asked: this proves nothing then

    @property
    def holds(self) -> bool:
        return self.count == 0 and self.skipped is None

    @property
    def late(self) -> bool:
        return self.skipped == LATE


# How many rows break an invariant, and the first of them.
Found = tuple[int, list[dict[str, Any]]]


@cache
def invariants() -> dict[str, Invariant]:
    """By name, in the order in which they are asked."""
    found = {
        name: Invariant(name, notes, group, of_set=True)
        for group, members in release.check_sets().items()
        for name, notes in members.items()
    }
    for file in ("check_secrets.sql", "check_schema.sql"):
        for name, statement in statements("helixqueue.operate", file).items():
            found[name] = Invariant(name, statement.notes, statement.sql, of_set=False)
    return found


def check(
    connection: Connection[Any],
    *,
    only: Collection[str] | None = None,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
    enter: Callable[[Connection[Any]], None] | None = None,
) -> list[Result]:
    """Ask for violations of every invariant; `progress` is called with each name beforehand.

    `only` names some of them. All of them together have so many `seconds`: each set or query what
    those before it left. One that does not end in its time is skipped, and is late.

    Use the role that migrates: an operator's login sees every tenant, but not the secrets of the
    fingerprints, and the invariants that rest on those are skipped. A role that is bound to tenants
    checks the rows of these. `enter` as in `snapshot`.
    """
    results: list[Result] = []
    deadline = None if seconds is None else time.monotonic() + seconds
    wanted = [one for one in invariants().values() if only is None or one.name in only]
    with snapshot(connection, enter):
        # Definitions in the catalogues are written with their schemas, as in schema.sql.
        connection.execute("set local search_path = pg_catalog, pg_temp")
        for asked, group in groupby(wanted, lambda one: one.asked):
            members = list(group)
            for one in members:
                if progress is not None:
                    progress(one.name)
            left = None if deadline is None else deadline - time.monotonic()
            results += _ask(connection, asked, members, left)
    return results


def _ask(
    connection: Connection[Any], asked: str, members: list[Invariant], seconds: float | None
) -> list[Result]:
    found: dict[str, Found] = {}
    skipped = None
    try:
        # Rolled back, so that its time limit does not apply to the next one.
        with connection.transaction(force_rollback=True):
            if seconds is not None:
                if seconds < LEAST_SECONDS:
                    raise QueryCanceled  # as the server would
                limit_statement_time(connection, seconds)
            if members[0].of_set:
                rows = connection.execute("select * from helix.read_check_v1(%s)", (asked,))
                found = {name: (count, witnesses) for name, count, witnesses in rows}
            else:
                found = {members[0].name: _violations(connection, asked)}
    except InsufficientPrivilege as denied:
        skipped = f"role {connection.info.user}: {denied.diag.message_primary}"
    except QueryCanceled:
        skipped = LATE
    return [_result(one, found.get(one.name, (0, [])), skipped) for one in members]


def _violations(connection: Connection[Any], query: str) -> Found:
    arguments = release.definitions() if "%(" in query else None
    row = connection.execute(_COUNTED.format(query, WITNESSES).encode(), arguments).fetchone()
    return row or (0, [])


def _result(invariant: Invariant, found: Found, skipped: str | None) -> Result:
    count, witnesses = found
    notes = invariant.notes
    return Result(
        invariant.name,
        notes["promise"],
        count,
        notes["means"],
        notes["action"],
        witnesses,
        skipped,
    )


# Counted and shown from one evaluation; JSON carries any column without knowing its type.
_COUNTED = """
with violation as materialized ({})
select (select count(*) from violation),
       coalesce((select json_agg(few) from (select * from violation limit {}) few), '[]')
"""
