"""Selection: retry or cancel all batches that match some filters, after a dry run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from starlette.responses import Response

from helixqueue.dashboard.page import PageDep, action, page_router, view
from helixqueue.dashboard.pages.batches import FiltersDep
from helixqueue.operations import batch_actions
from helixqueue.operations.operation import Operation
from helixqueue.records.batch import ActionResult
from helixqueue.records.page import Page

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
Verb = Literal["retry", "cancel"]


@view(routes, "/select/{verb}", "operate", live=False)
async def preview(page: PageDep, verb: Verb, filters: FiltersDep) -> Response:
    """What would happen now, and the form that asks for the reason."""
    found = await page.ask(
        OPERATIONS[verb], reason=DRY_REASON, limit=PAGE, dry_run=True, **_selected(verb, filters)
    )
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
        found = await page.ask(
            OPERATIONS[verb], reason=page.reason, limit=PAGE, after=after, **filters
        )
        results += found.rows
        after = found.next
        if after is None:
            break
    return results, after is not None


def _selected(verb: Verb, filters: dict[str, Any]) -> dict[str, Any]:
    """The filters of the operation: a retry is of failed batches only, and needs some filter."""
    if verb != "retry":
        return filters
    return {name: value for name, value in filters.items() if name != "state"} or {"since": EVER}
