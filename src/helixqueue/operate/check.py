"""Every invariant as a query: what a guard could not prevent, because it was switched off, shows.

The queries are in `check_rows.sql`, `check_fences.sql` and `check_schema.sql`, each with its
promise, its meaning and its remedy. They read one snapshot, so traffic need not stop.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from psycopg.errors import InsufficientPrivilege, QueryCanceled

from helixqueue.states import ARROWS, FENCE_ARROWS
from helixqueue.store.serving import bound
from helixqueue.store.snapshot import snapshot
from helixqueue.store.statements import Statement, statements

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from psycopg import Connection

WITNESSES = 10
LATE = "it did not end in time"  # of an invariant that was skipped for that
LEAST_SECONDS = 0.05  # with less left, an invariant is not begun


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


def invariants() -> dict[str, Statement]:
    found: dict[str, Statement] = {}
    for file in ("check_rows.sql", "check_fences.sql", "check_schema.sql"):
        found |= statements("helixqueue.operate", file)
    return found


def check(
    connection: Connection[Any],
    *,
    only: Collection[str] | None = None,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
    enter: Callable[[Connection[Any]], None] | None = None,
) -> list[Result]:
    """Ask for violations of every invariant; `progress` is told the name of each beforehand.

    `only` names some of them. All of them together have so many `seconds`: each what those before
    it left. One that does not end in its time is skipped, and is late.

    Use the role that migrates: an operator's login sees every tenant, but neither the secrets of
    the fingerprints nor the sequences, and what rests on those is reported as skipped. A role that
    is bound to tenants checks the rows of these. `enter` as in `snapshot`.
    """
    results = []
    deadline = None if seconds is None else time.monotonic() + seconds
    with snapshot(connection, enter):
        for invariant in invariants().values():
            if only is not None and invariant.name not in only:
                continue
            if progress is not None:
                progress(invariant.name)
            left = None if deadline is None else deadline - time.monotonic()
            results.append(_ask(connection, invariant, left))
    return results


def _ask(connection: Connection[Any], invariant: Statement, seconds: float | None) -> Result:
    notes = invariant.notes
    count, witnesses, skipped = 0, [], None
    query = _COUNTED.format(invariant.sql, WITNESSES)
    try:
        # Rolled back, so that the bound of one is not the bound of what comes behind it.
        with connection.transaction(force_rollback=True):
            if seconds is not None:
                if seconds < LEAST_SECONDS:
                    raise QueryCanceled  # as the server would
                bound(connection, seconds)
            row = connection.execute(
                query.encode(), _release() if "%(" in invariant.sql else None
            ).fetchone()
            count, witnesses = row or (0, [])
    except InsufficientPrivilege as denied:
        skipped = f"role {connection.info.user}: {denied.diag.message_primary}"
    except QueryCanceled:
        skipped = LATE
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

_FUNCTION = re.compile(
    r"^create (?:or replace )?function helix\.(\w+)\((.*?)\bas \$\$(.*?)\$\$",
    re.MULTILINE | re.DOTALL,
)
_SETTING = re.compile(r"\bset (\w+) = ([^\n]*?)(?=\s+set \w+ =|\s*$)", re.MULTILINE)


@cache
def _release() -> dict[str, list[Any]]:
    """What this release says the arrows and the functions are, as arguments of the queries."""
    arrows, fence_arrows = sorted(ARROWS, key=str), sorted(FENCE_ARROWS, key=str)
    functions = []
    for script in (files("helixqueue.store") / "sql").iterdir():
        for name, head, body in _FUNCTION.findall(script.read_text(encoding="utf-8")):
            said = re.sub(r"--.*", "", head)
            pinned = sorted(
                f"{word}={value.strip()}".replace(" ", "") for word, value in _SETTING.findall(said)
            )
            functions.append((name, body, "security definer" in said, ";".join(pinned)))
    return {
        "arrow_from": [before for before, _ in arrows],
        "arrow_to": [after for _, after in arrows],
        "fence_from": [before for before, _ in fence_arrows],
        "fence_to": [after for _, after in fence_arrows],
        "function_name": [function[0] for function in functions],
        "function_body": [function[1] for function in functions],
        "function_definer": [function[2] for function in functions],
        "function_settings": [function[3] for function in functions],
    }
