"""Background duties, and what those that reconcile and audit found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

from helixqueue.operations import engine
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.operation import operation
from helixqueue.records.duty import DutyRow, ReconcileFinding
from helixqueue.records.page import Page
from helixqueue.records.parameter import Param

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations

FINDINGS_MAX: Final = 1_000
Cleared = Annotated[bool, Param("Also findings that no longer hold.", option="--all")]


@operation("GET /v1/duties", scope="read")
def list_duties(operations: Operations) -> Instructions[Page[DutyRow]]:
    """List duties with their interval, last run, lag and last failure.

    Services run them; claims run some of them as well. Duties are for all tenants, so a token does
    not learn which process ran a duty, how long it took and how many rows it changed.
    """
    rows = yield from operations.ask(engine.duties.list_duties())
    if operations.token_hash is not None:
        rows = [replace(row, actor=None, did=0, total=0, seconds=0.0) for row in rows]
    return Page(tuple(rows), None)


@operation("GET /v1/findings", scope="read")
def list_findings(
    operations: Operations, *, cleared: Cleared = False
) -> Instructions[Page[ReconcileFinding]]:
    """List what reconciliation found, open and newest first.

    At most 1,000. `duplicate_assignment`, `audit_missing`, `lease_overdue` and `stalled_pending`
    each have a runbook. A token does not see `detail`: it has internal numbers, which count the
    work of all tenants.
    """
    rows = yield from operations.ask(
        engine.metrics.list_findings(open_only=not cleared, limit=FINDINGS_MAX)
    )
    if operations.tenant:
        rows = [row for row in rows if row.tenant == operations.tenant]
    if operations.token_hash is not None:
        rows = [replace(row, detail=None) for row in rows]
    return Page(tuple(rows), None)
