"""Runs: how far each is, its datums as a grid, why they failed, and its files."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import Path, Query
from starlette.responses import Response

from helixqueue.dashboard.page import After, PageDep, action, go_to, page_router, view
from helixqueue.dashboard.rendering import url
from helixqueue.operations import runs as operations
from helixqueue.states import State

routes = page_router()
Name = Annotated[str, Path(max_length=63)]
Verb = Literal["cancel", "retry"]
VERBS: Final[dict[Verb, tuple[str, ...]]] = {
    "retry": ("running", "failed"),
    "cancel": ("expanding", "running", "stopping", "reopening", "failed"),
}
GRID: Final = 500  # datums that are drawn
FILES: Final = 20
TABS: Final = (None, State.PENDING, State.RUNNING, State.COMPLETED, State.FAILED, State.CANCELLED)


@view(routes, "/runs")
async def runs(page: PageDep, after: After = None) -> Response:
    found = await page.ask(operations.list_runs, after=after)
    return await page.show("runs.html", found=found)


@view(routes, "/runs/{name}")
async def run(
    page: PageDep,
    name: Name,
    act: Annotated[Verb | None, Query()] = None,
    state: State | None = None,
    after: After = None,
) -> Response:
    row = await page.ask(operations.show_run, run=name)
    datums = await page.ask(operations.list_datums, run=name, state=state, after=after, limit=GRID)
    files = await page.ask(operations.list_run_outputs, run=name, limit=FILES)
    return await page.show(
        "run.html",
        run=row,
        rate=row.rate(page.now),
        seconds_left=row.seconds_left(page.now),
        datums=datums,
        files=files,
        tabs=TABS,
        wanted=state,
        act=act,
        verbs=[verb for verb, states in VERBS.items() if row.state in states],
    )


@action(routes, "/runs/{name}/{verb}")
async def act_on_run(page: PageDep, name: Name, verb: Verb) -> Response:
    change = operations.retry_run if verb == "retry" else operations.cancel_run
    await page.ask(change, run=name, reason=page.reason)
    return go_to(url("runs", name))
