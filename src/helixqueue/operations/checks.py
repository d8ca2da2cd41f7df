"""Runs of `check` that the service recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from helixqueue.operations import engine
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.operation import operation
from helixqueue.records.check import CheckRun
from helixqueue.records.page import Page
from helixqueue.records.parameter import Cursor, Param

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations

Runs = Annotated[int, Param("Maximum number of runs.", least=1, most=100, metavar="N")]


@operation("GET /v1/checks", scope="read")
def list_checks(
    operations: Operations, *, after: Cursor | None = None, limit: Runs = 10
) -> Instructions[Page[CheckRun]]:
    """List runs of the check on the rows of the tenant, newest first.

    Each has what every invariant found. A run of all invariants is recorded when it ends; the
    newest hundred are kept.
    """
    return operations.ask(
        engine.check_runs.check_runs(tenant=operations.tenant, after=after, limit=limit)
    )
