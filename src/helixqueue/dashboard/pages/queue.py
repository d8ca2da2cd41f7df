"""Queue: what waits, what runs, its settings, and what a person can change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import Query
from starlette.responses import Response

from helixqueue.dashboard.formats import age, duration
from helixqueue.dashboard.page import PageDep, action, go_to, page_router, view
from helixqueue.dashboard.pages.overview import since_first, throughput
from helixqueue.dashboard.plots import Series, plot
from helixqueue.dashboard.rendering import url
from helixqueue.operations import overview, workers
from helixqueue.operations import queues as operations
from helixqueue.records.series import Period
from helixqueue.records.waiting import needs_of
from helixqueue.service.routing import QueueName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from markupsafe import Markup

    from helixqueue.dashboard.page import PageRequest
    from helixqueue.records.device import DeviceRow
    from helixqueue.records.overview import QueueOverview
    from helixqueue.records.queue import QueueSummary
    from helixqueue.records.series import TimeSeries

routes = page_router()
LONGEST: Final = 8
_STEPS: Final = {60: "minute", 3600: "hour"}
# The settings that the form offers, and how their texts are read.
SETTINGS: Final[dict[str, type]] = {
    "lease_seconds": float,
    "max_attempts": int,
    "backoff_seconds": float,
    "backoff_max_seconds": float,
    "key_limit": int,
    "stalled_after_seconds": float,
    "keep_completed_seconds": float,
    "keep_failed_seconds": float,
    "keep_cancelled_seconds": float,
}
Act = Annotated[Literal["pause", "resume", "set"] | None, Query()]


@view(routes, "/queues/{queue}")
async def queue(
    page: PageDep, queue: QueueName, act: Act = None, period: Period = "1h"
) -> Response:
    row = await page.ask(operations.show_queue, queue=queue)
    series = since_first(await page.ask(overview.show_series, queue=queue, period=period))
    now = await page.ask(overview.show_overview)
    current = next((item for item in now.queues if item.queue == queue), None)
    waiting = await page.ask(overview.list_waiting, queue=queue, limit=LONGEST)
    asks = any(row.requires for row in waiting.rows)
    devices = (await page.ask(workers.list_devices)).rows if asks else ()
    return await page.show(
        "queue.html",
        devices=[
            f"{len(rows)} {model or 'of no known model'}, "
            f"{sum(row.status == 'free' for row in rows)} free"
            for model, rows in _by_model(devices).items()
        ],
        needs_of=needs_of,
        queue=row,
        current=current,
        condition=_condition(row, current),
        series=series,
        throughput=throughput(series),
        backlog=_backlog(series),
        latency=_latency(series),
        period=period,
        step=_STEPS.get(series.step_seconds) or age(series.step_seconds),
        waiting=waiting,
        act=act,
    )


def _by_model(devices: Sequence[DeviceRow]) -> dict[str, list[DeviceRow]]:
    models: dict[str, list[DeviceRow]] = {}
    for row in devices:
        models.setdefault(row.model, []).append(row)
    return models


def _condition(row: QueueSummary, current: QueueOverview | None) -> str:
    """What the queue does; the overview lists a limited number of queues."""
    if current is not None:
        return current.condition
    return "paused" if row.paused else "closed" if row.closed else "flowing"


def _backlog(series: TimeSeries) -> Markup:
    values = [point.pending for point in series.points]
    return plot(
        "Waiting batches", [Series("waiting", "area", values)], series.start, series.end, height=180
    )


def _latency(series: TimeSeries) -> Markup | None:
    points = series.points
    if all(point.wait_p95 is None and point.run_p95 is None for point in points):
        return None
    return plot(
        "Waiting and running time, p95",
        [
            Series("waiting", "line", [point.wait_p95 for point in points], "thin"),
            Series("running", "line", [point.run_p95 for point in points]),
        ],
        series.start,
        series.end,
        height=180,
        show=duration,
    )


@action(routes, "/queues/{queue}/pause")
async def pause(page: PageDep, queue: QueueName) -> Response:
    await page.ask(operations.pause_queue, queue=queue, reason=page.reason)
    return go_to(url("queues", queue))


@action(routes, "/queues/{queue}/resume")
async def resume(page: PageDep, queue: QueueName) -> Response:
    await page.ask(operations.resume_queue, queue=queue, reason=page.reason)
    return go_to(url("queues", queue))


@action(routes, "/queues/{queue}/settings")
async def change_settings(page: PageDep, queue: QueueName) -> Response:
    """Set what differs; a field that was left empty stays as it is."""
    row = await page.ask(operations.show_queue, queue=queue)
    changes = {name: value for name, value in _numbers(page).items() if value != getattr(row, name)}
    await page.ask(operations.set_queue, queue=queue, reason=page.reason, **changes)
    return go_to(url("queues", queue))


def _numbers(page: PageRequest) -> dict[str, Any]:
    return {
        name: page.number(name, kind)
        for name, kind in SETTINGS.items()
        if page.form.get(name, "").strip()
    }
