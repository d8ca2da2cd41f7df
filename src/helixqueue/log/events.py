"""Events of workers and submissions: what happened to a batch, found by a search for its id.

Set the logger `helixqueue.worker.operation` to INFO to log the calls of a worker, as `helixq work`
does. Successful renewals are made by the heartbeat process and not logged; a refused renewal ends
the attempt, and the worker logs that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from helixqueue.identity import PART_SEPARATOR
from helixqueue.log.lines import event, refused_fields

if TYPE_CHECKING:
    from helixqueue.records.lease import LeaseRow, WriteResult
    from helixqueue.states import State

WORKER_LOG: Final = logging.getLogger("helixqueue.worker.operation")
IDENTITY_LOG: Final = logging.getLogger("helixqueue.identity")
MAX_LINES: Final = 20  # of one call; the last line has the number of the others


def log_write(
    worker: str,
    operation: str,
    row: LeaseRow,
    result: WriteResult | None = None,
    *,
    decision: str = "ok",
    request_id: UUID | None = None,
    outcome: State | None = None,
    detail: str | None = None,
    committed: bool = True,
) -> None:
    """Log what a call did to a batch: `result`, else `decision` and `outcome`.

    Without `committed`, the transaction of the call may still roll back. `detail` may contain data
    of users: terminals show its first line, and no log has it.
    """
    if not WORKER_LOG.isEnabledFor(logging.INFO):
        return
    state, owner, mismatch = outcome, None, None
    if result is not None:
        decision, state, mismatch = result.answer, result.state, result.mismatch or None
        owner = result.owner if decision == "refused" else None
    level = logging.WARNING if decision == "refused" else logging.INFO
    # Another worker owns the batch, or this one had two results for one attempt.
    if owner is not None or mismatch:
        level = logging.ERROR
    event(
        WORKER_LOG,
        level,
        operation,
        title=(row.identity or "").replace(PART_SEPARATOR, " / "),
        detail=(detail or "").partition("\n")[0],
        request=request_id,
        tenant=row.tenant,
        queue=row.queue,
        batch=row.batch_id,
        attempt=row.attempt,
        state=state,
        mismatch=mismatch,
        worker=worker,
        conflicting_worker=owner,
        decision=decision,
        committed=None if committed else False,
    )


def log_name_conflict(worker: str, row: LeaseRow, owner: str | None, note: str | None) -> None:
    """Log that an output file was refused because its name belongs to another batch."""
    event(
        WORKER_LOG,
        logging.ERROR,
        "outputs",
        reason=note,
        tenant=row.tenant,
        queue=row.queue,
        batch=row.batch_id,
        attempt=row.attempt,
        worker=worker,
        conflicting_worker=owner,
        decision="refused",
    )


def log_refused_identities(queue: str, refused: Sequence[tuple[bytes, str]]) -> None:
    """Log raw bytes and reasons of identities that violate their profile, or are missing.

    The bytes are in hex: a lab finds the tube by them, and no terminal or log collector changes
    them. The level is INFO, because the caller has the error.
    """
    for raw, reason in refused[:MAX_LINES]:
        fields = refused_fields(raw, reason)
        event(IDENTITY_LOG, logging.INFO, "submit", queue=queue, decision="refused", **fields)
    if len(refused) > MAX_LINES:
        more = len(refused) - MAX_LINES
        event(IDENTITY_LOG, logging.INFO, "submit", queue=queue, decision="refused", more=more)


def log_without_identity(queue: str, batches: Sequence[UUID]) -> None:
    """Warn about batches without identity: submitted again, each would be another batch."""
    fields: dict[str, Any] = {"queue": queue, "without_identity": True}
    for batch in batches[:MAX_LINES]:
        event(IDENTITY_LOG, logging.WARNING, "submit", batch=batch, **fields)
    if len(batches) > MAX_LINES:
        more = len(batches) - MAX_LINES
        event(IDENTITY_LOG, logging.WARNING, "submit", more=more, **fields)
