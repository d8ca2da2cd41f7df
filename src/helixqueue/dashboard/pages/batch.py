"""Batch: why it ran twice and took effect once, and everything that is recorded about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from uuid import UUID

from fastapi import Query
from starlette.responses import Response

from helixqueue.dashboard.code_points import cells
from helixqueue.dashboard.page import PageDep, action, go_to, page_router, view
from helixqueue.dashboard.rendering import identity, url
from helixqueue.dashboard.timeline import timeline
from helixqueue.dashboard.verdict import repeats_without_source, verdict
from helixqueue.errors import NoSuchQueue
from helixqueue.operations import batch_actions, batch_reads, outputs, overview, queues
from helixqueue.operations.operation import Operation
from helixqueue.states import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.dashboard.page import PageRequest
    from helixqueue.records.batch import BatchDetail
    from helixqueue.records.output import OutputRow

routes = page_router()
LEDGER_ROWS: Final = 200
WAITING_ROWS: Final = 50
OUTPUT_ROWS: Final = 50
# What a person may do to a batch in a state.
VERBS: Final = {
    "retry": (State.FAILED,),
    "cancel": (State.PENDING, State.ASSIGNED, State.RUNNING),
    "release": (State.ASSIGNED, State.RUNNING),
    "erase": (State.COMPLETED, State.FAILED, State.CANCELLED),
}
OPERATIONS: Final[dict[str, Operation[..., Any]]] = {
    "retry": batch_actions.retry_batch,
    "cancel": batch_actions.cancel_batch,
    "release": batch_actions.release_batch,
    "erase": batch_actions.erase_batch,
}
Verb = Literal["retry", "cancel", "release", "erase"]
Act = Annotated[Verb | None, Query()]


@view(routes, "/batches/{batch_id}")
async def batch(
    page: PageDep, batch_id: UUID, act: Act = None, leases: Literal["all"] | None = None
) -> Response:
    detail = await page.ask(batch_reads.show_batch, batch_id=batch_id, payload=page.may("payloads"))
    page.log.add(batch=batch_id)
    proof = await page.ask(overview.prove_batch, batch_id=batch_id)
    manifests = (await page.ask(outputs.list_manifests, batch=batch_id)).rows
    files: Sequence[OutputRow] = ()
    if any(row.state == "sealed" for row in manifests):
        files = (await page.ask(outputs.list_outputs, batch_id=batch_id, limit=OUTPUT_ROWS)).rows
    drawn = None
    if detail.place != "retired":
        seconds = await _lease_seconds(page, detail)
        drawn = timeline(detail, page.now, lease_seconds=seconds, all_leases=leases == "all")
    return await page.show(
        "batch.html",
        batch=detail,
        timeline=drawn,
        verdict=verdict(detail),
        repeats=repeats_without_source(detail),
        why=await _why_waiting(page, detail),
        spellings=cells(identity(detail.raw), identity(detail.identity)),
        proof=proof,
        hashes={entry.version: entry for entry in proof.entries},
        act=act,
        verbs=[] if detail.erased else [verb for verb, of in VERBS.items() if detail.state in of],
        ledger_rows=LEDGER_ROWS,
        manifests=manifests,
        files=files,
    )


@action(routes, "/batches/{batch_id}/{verb}")
async def act_on_batch(page: PageDep, batch_id: UUID, verb: Verb) -> Response:
    options = {"identity": "identity" in page.form} if verb == "erase" else {}
    page.log.add(batch=batch_id)
    await page.ask(OPERATIONS[verb], batch_id=batch_id, reason=page.reason, **options)
    return go_to(url("batches", batch_id))


async def _why_waiting(page: PageRequest, detail: BatchDetail) -> str | None:
    """Why no worker has the batch, if it is one of those that wait longest."""
    if detail.state is not State.PENDING or detail.queue is None:
        return None
    found = await page.ask(overview.list_waiting, queue=detail.queue, limit=WAITING_ROWS)
    return next((row.why for row in found.rows if row.batch_id == detail.batch_id), None)


async def _lease_seconds(page: PageRequest, detail: BatchDetail) -> float | None:
    if detail.queue is None:
        return None
    try:
        return (await page.ask(queues.show_settings, queue=detail.queue)).lease_seconds
    except NoSuchQueue:
        return None
