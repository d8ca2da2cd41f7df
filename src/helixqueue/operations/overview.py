"""What happened and what needs a person: figures over time, late writes, actions, search."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from helixqueue.errors import InvalidIdentity, NoSuchBatch, NoSuchQueue
from helixqueue.operations import batch_reads, engine
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.operation import operation
from helixqueue.records.batch import attempts_of
from helixqueue.records.overview import PARTS_SHOWN, Activity, LateWrite, Match, Overview
from helixqueue.records.page import Page
from helixqueue.records.parameter import MAX_PAGE, Cursor, Limit, Param, QueueName, printable
from helixqueue.records.series import Period, TimeSeries
from helixqueue.records.waiting import BatchProof, WaitingBatch

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations

PeriodWord = Annotated[
    Period, Param("1h, 6h, 1d, 7d or 30d, until now.", example="1h", metavar="WORD")
]
Text = Annotated[
    str,
    Param(
        "A sample in any spelling, the id of a batch or its beginning, the name of a worker, "
        "fence or queue, or the number of a dead letter.",
        example="S-1",
        length=1024,
        check=printable,
    ),
]
BatchId = Annotated[
    UUID,
    Param("Public id of the batch.", example="2336ad4b-c574-8cb3-9fe5-11bb1a5cd6c7"),
]
MATCHES_MAX = 10


@operation("GET /v1/overview", scope="read")
def show_overview(operations: Operations) -> Instructions[Overview]:
    """Show the figures of the tenant, its queues with problems first, and what waits for a person.

    Figures are kept by a duty every 15 seconds; `kept_at` is its last run.
    """
    return operations.ask(engine.overview.overview(tenant=operations.tenant))


@operation("GET /v1/series", scope="read")
def show_series(
    operations: Operations, *, queue: QueueName | None = None, period: PeriodWord = "1h"
) -> Instructions[TimeSeries]:
    """Show what happened over time, in a queue or in all.

    Steps of equal length with numbers, waiting and running times, and the backlog after each step.
    A waiting time begins when the batch became PENDING, and includes a requested delay.
    """
    return operations.ask(
        engine.overview.time_series(tenant=operations.tenant, queue=queue, period=period)
    )


@operation("GET /v1/refusals", scope="read")
def list_refusals(
    operations: Operations,
    *,
    queue: QueueName | None = None,
    after: Cursor | None = None,
    limit: Limit = 50,
) -> Instructions[Page[LateWrite]]:
    """List late writes that were refused, newest first, with the attempts of their batches.

    A page of one queue reads a limited number of refusals: it may be short or empty and still have
    a `next`.
    """
    page = yield from operations.ask(
        engine.overview.refusals(tenant=operations.tenant, queue=queue, after=after, limit=limit)
    )
    ids = [*dict.fromkeys(row.batch_id for row in page.rows)]
    if not ids:
        return page
    events = yield from operations.ask(engine.reads.events(ids=ids))
    attempts = {batch_id: tuple(attempts_of(steps)) for batch_id, steps in events.items()}
    return Page(
        tuple(replace(row, attempts=attempts[row.batch_id]) for row in page.rows), page.next
    )


@operation("GET /v1/activity", scope="read")
def list_activity(
    operations: Operations, *, after: Cursor | None = None, limit: Limit = 50
) -> Instructions[Page[Activity]]:
    """List what people and applications did, newest first.

    Settings, erasures, retries, cancellations, releases and recoveries of batches, decisions about
    fences and dead letters, and tokens. A page reads a limited part of the ledger: it may be short
    or empty and still have a `next`.
    """
    return operations.ask(
        engine.overview.activity(tenant=operations.tenant, after=after, limit=limit)
    )


@operation("GET /v1/search", scope="read")
def search(operations: Operations, *, text: Text) -> Instructions[Page[Match]]:
    """Find a sample, batch, worker, fence, queue or dead letter.

    At most ten of each kind; each is found through an index.
    """
    text = text.strip()
    found = yield from operations.ask(
        engine.overview.matches(tenant=operations.tenant, text=text, limit=MATCHES_MAX)
    )
    parts = tuple(text.split(PARTS_SHOWN)) if PARTS_SHOWN in text else text
    try:
        call = engine.reads.batches(
            tenant=operations.tenant or None, identity=parts, limit=MATCHES_MAX
        )
    except InvalidIdentity:
        return Page(tuple(found), None)
    samples = yield from operations.ask(call)
    batches = [
        Match("batch", PARTS_SHOWN.join(row.identity), str(row.batch_id), row.queue, row.state)
        for row in samples.rows
    ]
    found = [match for match in found if match.id not in {batch.id for batch in batches}]
    return Page((*batches, *found), None)


@operation(
    "GET /v1/queues/{queue}/waiting",
    scope="read",
    raises=[NoSuchQueue],
)
def list_waiting(
    operations: Operations, queue: QueueName, *, limit: Limit = 50
) -> Instructions[Page[WaitingBatch]]:
    """List the batches of a queue that wait longest, and why no worker has them.

    `no_worker_matches` names what no worker has that reported in the last day, `no worker fits`
    what no worker has that is alive. Workers of logins that serve other tenants are not known.
    """
    found = yield from operations.ask(engine.calls.queue(tenant=operations.tenant, queue=queue))
    if found is None:
        raise operations.no_such_queue(queue)
    rows = yield from operations.ask(
        engine.overview.waiting(tenant=operations.tenant, queue=queue, limit=limit)
    )
    return Page(tuple(rows), None)


def reasons_to_wait(operations: Operations, queue: str) -> Instructions[tuple[WaitingBatch, ...]]:
    """The batches of a queue that wait longest; none if the tenant has no such queue."""
    try:
        page = yield from list_waiting(operations, queue, limit=MAX_PAGE)
    except NoSuchQueue:
        return ()
    return page.rows


@operation("GET /v1/batches/{batch_id}/proof", scope="read", raises=[NoSuchBatch])
def prove_batch(operations: Operations, batch_id: BatchId) -> Instructions[BatchProof]:
    """Verify the ledger entries of a batch: the hash of each, and whether it is sound.

    The newest 200 steps; archived steps are not read. `helixq check` verifies the whole ledger.
    """
    proof = yield from operations.ask(engine.overview.batch_proof(batch_id))
    if not proof.entries:
        yield from batch_reads.show_outcome(operations, batch_id, result=False)  # or NoSuchBatch
    return proof
