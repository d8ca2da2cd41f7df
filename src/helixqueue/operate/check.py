"""Checks every invariant with a query, to detect damage that the guards could not prevent.

The invariants of rows are functions of the database (engine/sql/85_check.sql and the two files
after it), run set by set through `helix.read_check_v1`: the same text checks all rows for operators
and a tenant's own rows for tenants. Invariants that read secrets or the catalogues are in
`check_secrets.sql` and `check_schema.sql`. Each has its promise, meaning and remedy as notes. All
read one snapshot, so traffic can continue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from psycopg import DataError
from psycopg.errors import InsufficientPrivilege, QueryCanceled

from helixqueue.operate import release
from helixqueue.postgres.snapshot import snapshot
from helixqueue.postgres.statements import statements
from helixqueue.postgres.tenant_sessions import limit_statement_time

if TYPE_CHECKING:
    from psycopg import Connection

WITNESSES = 10
TIMED_OUT = "it did not end in time"  # why an invariant was skipped
SECONDS_MIN = 0.05  # with less time left, an invariant is not started


@dataclass(frozen=True, slots=True)
class Invariant:
    name: str
    notes: dict[str, str]
    query: str  # the name of its set, or SQL
    in_set: bool


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One invariant: `count` rows violate it, the first of them are `witnesses`."""

    name: str
    promise: str  # G1 to G11, see docs/guarantees.md
    count: int
    meaning: str
    remedy: str
    witnesses: list[dict[str, Any]] = field(default_factory=list)
    skipped: str | None = None  # why the query did not run; nothing is proven then

    @property
    def holds(self) -> bool:
        return self.count == 0 and self.skipped is None

    @property
    def late(self) -> bool:
        return self.skipped == TIMED_OUT


def report(results: Sequence[CheckResult], *, every_tenant: bool) -> dict[str, Any]:
    """The results as JSON."""
    return {
        "ok": all(result.count == 0 and not result.late for result in results),
        "every_tenant": every_tenant,
        "results": [
            asdict(result) | {"late": result.late, "holds": result.holds} for result in results
        ],
    }


# The number of rows that violate an invariant, and the first of them.
Violations = tuple[int, list[dict[str, Any]]]


@cache
def invariants() -> dict[str, Invariant]:
    """Return all invariants by name, in the order in which they run."""
    by_name = {
        name: Invariant(name, notes, group, in_set=True)
        for group, members in release.check_sets().items()
        for name, notes in members.items()
    }
    for file in ("check_secrets.sql", "check_schema.sql"):
        for name, statement in statements("helixqueue.operate", file).items():
            query = release.with_objects(statement.sql)
            by_name[name] = Invariant(name, statement.notes, query, in_set=False)
    return by_name


def check(
    connection: Connection[Any],
    *,
    only: Collection[str] | None = None,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
    enter: Callable[[Connection[Any]], None] | None = None,
) -> list[CheckResult]:
    """Query the violations of every invariant; `progress` is called with each name beforehand.

    `only` selects invariants by name. `seconds` limits all of them together; an invariant that does
    not end in the remaining time is skipped and reported as late.

    Use the role that migrates: an operator's login sees every tenant but not the keys of the
    fingerprints, and skips the invariants that need them. A role that is bound to tenants checks
    their rows only. `enter` as in `snapshot`.
    """
    with snapshot(connection, enter):
        return check_within(connection, only=only, seconds=seconds, progress=progress)


def check_within(
    connection: Connection[Any],
    *,
    only: Collection[str] | None = None,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[CheckResult]:
    """As `check`, inside the transaction of the connection."""
    results: list[CheckResult] = []
    deadline = None if seconds is None else time.monotonic() + seconds
    selected = [
        invariant for invariant in invariants().values() if only is None or invariant.name in only
    ]
    release.fix_output(connection)
    for query, group in groupby(selected, lambda invariant: invariant.query):
        members = list(group)
        if progress is not None:
            for invariant in members:
                progress(invariant.name)
        left = None if deadline is None else deadline - time.monotonic()
        results += _run(connection, query, members, left)
    return results


def _run(
    connection: Connection[Any], query: str, members: list[Invariant], seconds: float | None
) -> list[CheckResult]:
    violations: dict[str, Violations] = {}
    skipped = None
    try:
        # Rolled back, so that its time limit does not apply to the next.
        with connection.transaction(force_rollback=True):
            if seconds is not None:
                if seconds < SECONDS_MIN:
                    raise QueryCanceled  # like the server
                limit_statement_time(connection, seconds)
            if members[0].in_set:
                rows = connection.execute("select * from helix.read_check_v1(%s)", (query,))
                violations = {name: (count, witnesses) for name, count, witnesses in rows}
            else:
                violations = {members[0].name: _violations(connection, query)}
    except InsufficientPrivilege as denied:
        skipped = f"role {connection.info.user}: {denied.diag.message_primary}"
    except QueryCanceled:
        skipped = TIMED_OUT
    except DataError as unreadable:
        # An edited row, such as a text that is no longer JSON, must not hide the others silently.
        witness = {"what": "the query failed", "error": unreadable.diag.message_primary}
        violations = {invariant.name: (1, [witness]) for invariant in members}
    return [
        _result(invariant, violations.get(invariant.name, (0, [])), skipped)
        for invariant in members
    ]


def _violations(connection: Connection[Any], query: str) -> Violations:
    arguments = release.definitions() if "%(" in query else None
    row = connection.execute(_COUNTED.format(query, WITNESSES).encode(), arguments).fetchone()
    return row or (0, [])


def _result(invariant: Invariant, violations: Violations, skipped: str | None) -> CheckResult:
    count, witnesses = violations
    notes = invariant.notes
    return CheckResult(
        invariant.name,
        notes["promise"],
        count,
        notes["means"],
        notes["action"],
        witnesses,
        skipped,
    )


# Count and witnesses come from one evaluation; JSON represents columns of any type.
_COUNTED = """
with violation as materialized ({})
select (select count(*) from violation),
       coalesce((select json_agg(few) from (select * from violation limit {}) few), '[]')
"""
