"""Output files: manifests of attempts, and the published files of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from helixqueue.errors import NoSuchBatch, NoSuchOutputs, Refused
from helixqueue.operations import engine
from helixqueue.operations.batch_reads import BatchId, batch_id_of
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.operation import operation
from helixqueue.records.output import ManifestRow, ManifestState, OutputRow
from helixqueue.records.page import Page
from helixqueue.records.parameter import Cursor, Limit, Param, QueueName

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations

State = Annotated[
    ManifestState, Param("granted, sealed, blocked, or another state.", metavar="WORD")
]


@operation("GET /v1/manifests", scope="read")
def list_manifests(
    operations: Operations,
    *,
    batch: BatchId | None = None,
    queue: QueueName | None = None,
    state: State | None = None,
    after: Cursor | None = None,
    limit: Limit = 50,
) -> Instructions[Page[ManifestRow]]:
    """List outputs of attempts, newest first.

    A completed batch has one manifest that is granted, and sealed when all its files have their
    final names. A blocked one names the file that cannot get its name.
    """
    return operations.ask(
        engine.outputs.manifests(
            ids=None if batch is None else [batch_id_of(batch)],
            tenant=operations.tenant or None,
            queue=queue,
            state=state,
            before=after or "infinity",
            limit=limit,
        )
    )


@operation("GET /v1/batches/{batch_id}/outputs", scope="read", raises=[NoSuchBatch, NoSuchOutputs])
def list_outputs(
    operations: Operations,
    batch_id: BatchId,
    *,
    after: Cursor | None = None,
    limit: Limit = 50,
) -> Instructions[Page[OutputRow]]:
    """List the published files of a batch.

    Each with its address, size and SHA-256. They are the files of exactly one attempt, the one that
    completed the batch. Until all of them are published there are none.
    """
    wanted = batch_id_of(batch_id)
    page = yield from operations.ask(
        engine.outputs.outputs(batch_id=wanted, after=after or "", limit=limit)
    )
    if not page.rows and after is None:
        found = yield from list_manifests(operations, batch=wanted)
        states = ", ".join(sorted({row.state for row in found.rows})) or "none"
        raise NoSuchOutputs(f"batch {wanted} has no published files; its manifests are: {states}")
    return page


def are_published(operations: Operations, batch: BatchId) -> Instructions[bool]:
    """Whether every file that the batch granted has its final name; `Refused` if one cannot."""
    page = yield from list_manifests(operations, batch=batch)
    for row in page.rows:
        if row.state == "blocked":
            raise Refused(f"the output files of batch {row.batch_id} are blocked: {row.problem}")
    return all(row.state != "granted" for row in page.rows)
