"""Selection: retry, cancel or release all batches that match some filters, after a dry run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from starlette.responses import Response

from helixqueue.dashboard.page import PageDep, action, page_router, view
from helixqueue.dashboard.pages.batches import FiltersDep
from helixqueue.errors import IllegalTransition, Retryable
from helixqueue.operations import batch_actions, batch_reads
from helixqueue.operations.operation import Operation
from helixqueue.records.batch import ActionResult
from helixqueue.records.page import Page
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.dashboard.page import PageRequest

routes = page_router()
OPERATIONS: Final[dict[str, Operation[..., Page[ActionResult]]]] = {
    "retry": batch_actions.retry_batches,
    "cancel": batch_actions.cancel_batches,
}
EVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
DRY_REASON: Final = "dry run"
PAGE: Final = 500
# Of one form: the next form goes on.
BATCHES_MAX: Final = 10_000
HELD: Final = {State.ASSIGNED, State.RUNNING}
Verb = Literal["retry", "cancel", "release"]


@view(routes, "/select/{verb}", "operate", live=False)
async def preview(page: PageDep, verb: Verb, filters: FiltersDep) -> Response:
    """What would happen now, and the form that asks for the reason."""
    found = await _act_on_page(page, verb, _selected(verb, filters), DRY_REASON, dry_run=True)
    return await page.show(
        "selection.html",
        verb=verb,
        filters=filters,
        results=found.rows,
        possible=sum(row.answer == "ok" for row in found.rows),
        more=found.next is not None,
        done=False,
    )


@action(routes, "/select/{verb}")
async def act(page: PageDep, verb: Verb, filters: FiltersDep) -> Response:
    results, more = await _act_on_all(page, verb, _selected(verb, filters))
    return await page.show(
        "selection.html",
        verb=verb,
        filters=filters,
        results=results[:PAGE],
        possible=sum(row.answer == "ok" for row in results),
        more=more,
        done=True,
    )


async def _act_on_all(
    page: PageRequest, verb: Verb, filters: dict[str, Any]
) -> tuple[list[ActionResult], bool]:
    results: list[ActionResult] = []
    after = None
    while len(results) < BATCHES_MAX:
        found = await _act_on_page(page, verb, filters, page.reason, after=after)
        results += found.rows
        after = found.next
        if after is None:
            break
    return results, after is not None


async def _act_on_page(
    page: PageRequest,
    verb: Verb,
    filters: dict[str, Any],
    reason: str,
    *,
    after: str | None = None,
    dry_run: bool = False,
) -> Page[ActionResult]:
    if verb != "release":
        return await page.ask(
            OPERATIONS[verb], reason=reason, limit=PAGE, after=after, dry_run=dry_run, **filters
        )
    listed = await page.ask(batch_reads.list_batches, limit=PAGE, after=after, **filters)
    held = [row for row in listed.rows if row.state in HELD]
    results = [
        ActionResult(row.batch_id, "ok", row.state, None, row.queue, row.identity) for row in held
    ]
    if not dry_run:
        results = [await _release(page, result, reason) for result in results]
    return Page(tuple(results), listed.next)


async def _release(page: PageRequest, result: ActionResult, reason: str) -> ActionResult:
    """A batch that its worker ended meanwhile stays as it is."""
    try:
        done = await page.ask(batch_actions.release_batch, batch_id=result.batch_id, reason=reason)
    except IllegalTransition as error:
        state = None if error.state is None else State(error.state)
        return replace(result, answer="illegal", state=state, note=error.note)
    except Retryable:
        return replace(result, answer="busy")
    return replace(result, answer=done.answer, state=done.state, note=done.note)


def _selected(verb: Verb, filters: dict[str, Any]) -> dict[str, Any]:
    """The filters of the operation: a retry is of failed batches only, and needs some filter."""
    if verb != "retry":
        return filters
    return {name: value for name, value in filters.items() if name != "state"} or {"since": EVER}
