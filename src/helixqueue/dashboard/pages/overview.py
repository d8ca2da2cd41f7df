"""Overview: whether all is well, what waits for a person, and what every queue does."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from helixqueue.dashboard.page import PageDep, page_router, view
from helixqueue.dashboard.pages.proof import contradicting, described
from helixqueue.dashboard.plots import Series, plot
from helixqueue.dashboard.timeline import mini
from helixqueue.operations import overview as operations
from helixqueue.operations.checks import list_checks

if TYPE_CHECKING:
    from datetime import datetime

    from markupsafe import Markup

    from helixqueue.records.overview import LateWrite
    from helixqueue.records.series import SeriesPoint, TimeSeries

routes = page_router()
LATE_WRITES: Final = 5
FEWEST_POINTS: Final = 10


@view(routes, "/")
async def overview(page: PageDep) -> Response:
    found = await page.ask(operations.show_overview)
    if not found.queues:
        return await page.show("first_steps.html")
    series = await page.ask(operations.show_series)
    late = await page.ask(operations.list_refusals, limit=LATE_WRITES)
    checked = next(iter((await page.ask(list_checks, limit=1)).rows), None)
    results = [] if checked is None else described(checked)
    return await page.show(
        "overview.html",
        overview=found,
        series=series,
        throughput=throughput(since_first(series), height=190),
        drawn=any(map(_something, series.points)),
        late_writes=[(row, picture(row, page.now)) for row in late.rows],
        checked=checked,
        results=results,
        contradicting=contradicting(results),
        sealed=None if page.service.sealing is None else page.service.sealing.last,
    )


def since_first(series: TimeSeries) -> TimeSeries:
    """The series from its first figures on: a new queue has an empty past, which is left out."""
    found = (place for place, point in enumerate(series.points) if _something(point))
    first = next(found, 0)
    empty = max(0, min(first - 1, len(series.points) - FEWEST_POINTS))
    start = series.start + empty * timedelta(seconds=series.step_seconds)
    return replace(series, start=start, points=series.points[empty:])


def _something(point: SeriesPoint) -> bool:
    return bool(point.submitted or point.completed or point.failed or point.pending)


def throughput(series: TimeSeries, *, height: int = 180) -> Markup:
    points = series.points
    return plot(
        "Submitted, completed and failed batches",
        [
            Series("completed", "area", [point.completed for point in points]),
            Series("submitted", "line", [point.submitted for point in points], "thin"),
            Series("failed", "bars", [point.failed for point in points], "bad"),
        ],
        series.start,
        series.end,
        height=height,
    )


def picture(row: LateWrite, now: datetime) -> Markup:
    """The attempts of a batch in one line of a table, with its late writes."""
    return mini(row.attempts, [row], row.state, now)
