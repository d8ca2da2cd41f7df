"""Calls about output files, described like those of calls.py; SQL in outputs.sql."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal
from uuid import UUID

from helixqueue.engine.arrays import numbers, plain, texts
from helixqueue.postgres.call import Call
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.output import (
    KnownOutputs,
    ManifestRow,
    OutputAnswer,
    OutputRow,
    OutputTask,
    TaskFile,
)
from helixqueue.records.page import Page

if TYPE_CHECKING:
    from helixqueue.postgres.call import Row
    from helixqueue.records.lease import LeaseRef
    from helixqueue.records.output import ManifestState, StagedFile

PAGE_FILES: Final = 1_000  # of one call
Outcome = Literal["sealed", "blocked", "failed", "cleaned", "removed"]
_SQL = sql_texts("helixqueue.engine", "outputs.sql")


def open_outputs(*, worker: str, lease: LeaseRef, size: int | None = None) -> Call[OutputAnswer]:
    """Open the manifest of an attempt that is about to stage `size` bytes."""
    return Call(_SQL["open"], (worker, lease.batch, *lease.token, size), _read_answer)


def register_outputs(
    *,
    worker: str,
    lease: LeaseRef,
    first: int,
    staged: Sequence[StagedFile],
    files: int | None = None,
) -> Call[OutputAnswer]:
    """Register files numbered from `first`; the last page has the number of all files."""
    columns = (
        texts([file.path for file in staged]),
        numbers([file.size for file in staged]),
        texts([rf"\x{file.sha256.hex()}" for file in staged]),
    )
    args = (worker, lease.batch, *lease.token, first, *columns, files)
    return Call(_SQL["register"], args, _read_answer)


def take_outputs(
    *,
    limit: int,
    manifests: Sequence[UUID] | None = None,
    every_tenant: bool = False,
    queues: Sequence[str] | None = None,
) -> Call[list[OutputTask]]:
    """Take tasks that are due, or those of `manifests`."""
    return Call(
        _SQL["take"],
        (limit, plain(manifests), every_tenant, None if queues is None else texts(queues)),
        lambda rows: [OutputTask(*row) for row in rows],
    )


def output_files(
    *, manifest: UUID, after: str, limit: int = PAGE_FILES, every_tenant: bool = False
) -> Call[list[TaskFile]]:
    return Call(
        _SQL["files"],
        (manifest, after, limit, every_tenant),
        lambda rows: [TaskFile(*row) for row in rows],
    )


def end_outputs(
    *,
    manifest: UUID,
    outcome: Outcome,
    files: int | None = None,
    problem: str | None = None,
    every_tenant: bool = False,
) -> Call[ManifestState]:
    args = (manifest, outcome, files, problem, every_tenant)
    return Call(_SQL["finish"], args, lambda rows: rows[0][0])


def known_outputs(*, manifests: Sequence[UUID], uris: Sequence[str]) -> Call[KnownOutputs]:
    """Those of `manifests` whose staging is needed, and of `uris` that are published files."""
    return Call(
        _SQL["known"],
        (plain(manifests), texts(uris)),
        lambda rows: KnownOutputs(frozenset(rows[0][0]), frozenset(rows[0][1])),
    )


def manifests(
    *,
    ids: Sequence[UUID] | None = None,
    tenant: str | None = None,
    queue: str | None = None,
    state: ManifestState | None = None,
    before: str = "infinity",
    limit: int = 50,
) -> Call[Page[ManifestRow]]:
    """A page of manifests, newest first."""

    def read(rows: list[Row]) -> Page[ManifestRow]:
        shown = tuple(ManifestRow(*row) for row in rows[:limit])
        return Page(shown, shown[-1].opened_at.isoformat() if len(rows) > limit else None)

    return Call(_SQL["manifests"], (plain(ids), tenant, queue, state, before, limit + 1), read)


def outputs(*, batch_id: UUID, after: str = "", limit: int = 50) -> Call[Page[OutputRow]]:
    """A page of the published files of a batch, by path."""

    def read(rows: list[Row]) -> Page[OutputRow]:
        shown = tuple(
            OutputRow(path, uri, size, sha256.hex()) for path, uri, size, sha256 in rows[:limit]
        )
        return Page(shown, shown[-1].path if len(rows) > limit else None)

    return Call(_SQL["outputs"], (batch_id, after, limit + 1), read)


def set_root(
    *,
    tenant: str,
    uri: str,
    reason: str,
    removed: bool = False,
    stored_at: str | None = None,
    is_input: bool = False,
    actor: str | None = None,
) -> Call[bool]:
    """Add or change a root of output files, or remove it; false if nothing changed.

    Runs find what they name below `uri` at `stored_at`; they only read below a root `is_input`.
    """
    args = (tenant, uri, actor, reason, removed, stored_at, is_input)
    return Call(_SQL["set_root"], args, lambda rows: rows[0][0])


def _read_answer(rows: list[Row]) -> OutputAnswer:
    return OutputAnswer(*rows[0])
