"""Calls about runs, described like those of calls.py; SQL in runs.sql."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from helixqueue.engine.arrays import json_texts, texts
from helixqueue.postgres.call import Call
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.page import Page
from helixqueue.records.run import (
    RunAnswer,
    RunDetail,
    RunOutput,
    RunRoot,
    RunRow,
    RunText,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.postgres.call import Row

_SQL = sql_texts("helixqueue.engine", "runs.sql")


def start(
    *,
    tenant: str,
    queue: str,
    key: str,
    name: str,
    digest: bytes,
    datums: int,
    spec: str,
    received: str,
    egress: str,
    layout: str,
    tries: int,
    timeout_seconds: float | None,
    priority: int,
    requires: str | None,
    actor: str | None = None,
) -> Call[RunAnswer]:
    args = (
        tenant, queue, key, name, digest, datums, spec, received, egress, layout, tries,
        timeout_seconds, priority, actor, requires,
    )  # fmt: skip
    return Call(_SQL["start"], args, _read_answer)


def append(
    *,
    tenant: str,
    run: int,
    first: int,
    rows: Sequence[tuple[str, str, str | None]],
    actor: str | None = None,
) -> Call[RunAnswer]:
    """Append datums numbered from `first`: canonical identity, payload and raw identity of each."""
    identities, payloads, raws = zip(*rows, strict=True) if rows else ((), (), ())
    raw = texts(raws) if any(raws) else None
    args = (tenant, run, first, texts(identities), json_texts(payloads), raw, actor)
    return Call(_SQL["append"], args, _read_answer)


def change(
    verb: Literal["cancel", "retry"],
    *,
    tenant: str,
    run: int,
    reason: str,
    actor: str | None = None,
) -> Call[RunAnswer]:
    return Call(_SQL[verb], (tenant, run, actor, reason), _read_answer)


def runs(
    *, tenant: str | None, state: str | None = None, before: str = "infinity", limit: int = 50
) -> Call[Page[RunRow]]:
    """A page of runs, newest first."""

    def read(rows: list[Row]) -> Page[RunRow]:
        shown = tuple(RunRow(*_run_columns(row)[:-2]) for row in rows[:limit])
        return Page(shown, shown[-1].created_at.isoformat() if len(rows) > limit else None)

    return Call(_SQL["runs"], (tenant, None, state, before, limit + 1, False), read)


def find_run(*, tenant: str | None, run: str, spec: bool = False) -> Call[list[RunDetail]]:
    """The runs with this name or id: several only if `tenant` is None."""
    return Call(
        _SQL["runs"],
        (tenant, run, None, "infinity", 2, spec),
        lambda rows: [RunDetail(*_run_columns(row)) for row in rows],
    )


def run_text(*, run: int) -> Call[RunText | None]:
    """The spec of a run as it is run; None if the login sees no such run."""
    return Call(_SQL["text"], (run,), lambda rows: RunText(*rows[0]) if rows else None)


def outputs(*, run: int, after: str = "", limit: int = 50) -> Call[Page[RunOutput]]:
    """A page of the published files."""
    manifest, _, path = after.partition(" ")

    def read(rows: list[Row]) -> Page[RunOutput]:
        shown = tuple(RunOutput(*row[:6]) for row in rows[:limit])
        following = f"{rows[limit - 1][6]} {rows[limit - 1][2]}" if len(rows) > limit else None
        return Page(shown, following)

    return Call(_SQL["outputs"], (run, manifest or None, path, limit + 1), read)


def roots(*, tenant: str | None) -> Call[list[RunRoot]]:
    return Call(_SQL["roots"], (tenant,), lambda rows: [RunRoot(*row) for row in rows])


def _read_answer(rows: list[Row]) -> RunAnswer:
    return RunAnswer(*rows[0])


def _run_columns(row: Row) -> tuple[Any, ...]:
    head, counts, rest = row[:7], row[7], row[8:]
    number = [counts.get(word, 0) for word in ("PENDING", "COMPLETED", "FAILED", "CANCELLED")]
    running = counts.get("ASSIGNED", 0) + counts.get("RUNNING", 0)
    return (*head, number[0], running, *number[1:], *rest)
