"""Queue: what waits, what runs, its settings, and what a person can change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import Query
from starlette.responses import Response

from helixqueue.dashboard.page import PageDep, action, go_to, page_router, view
from helixqueue.dashboard.pages.queues import line_of
from helixqueue.dashboard.rendering import url
from helixqueue.operations import batch_reads
from helixqueue.operations import queues as operations
from helixqueue.service.routing import QueueName
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.dashboard.page import PageRequest

routes = page_router()
LONGEST: Final = 8
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
async def queue(page: PageDep, queue: QueueName, act: Act = None) -> Response:
    row = await page.ask(operations.show_queue, queue=queue)
    waiting = await page.ask(
        batch_reads.list_batches, queue=queue, state=State.PENDING, limit=LONGEST
    )
    return await page.show("queue.html", line=line_of(row), waiting=waiting, act=act)


@action(routes, "/queues/{queue}/pause")
async def pause(page: PageDep, queue: QueueName) -> Response:
    await page.ask(operations.pause_queue, queue=queue, reason=page.form.get("reason", ""))
    return go_to(url("queues", queue))


@action(routes, "/queues/{queue}/resume")
async def resume(page: PageDep, queue: QueueName) -> Response:
    await page.ask(operations.resume_queue, queue=queue, reason=page.form.get("reason", ""))
    return go_to(url("queues", queue))


@action(routes, "/queues/{queue}/settings")
async def change_settings(page: PageDep, queue: QueueName) -> Response:
    """Set what differs; a field that was left empty stays as it is."""
    row = await page.ask(operations.show_queue, queue=queue)
    changes = {name: value for name, value in _numbers(page).items() if value != getattr(row, name)}
    reason = page.form.get("reason", "")
    await page.ask(operations.set_queue, queue=queue, reason=reason, **changes)
    return go_to(url("queues", queue))


def _numbers(page: PageRequest) -> dict[str, Any]:
    return {
        name: page.number(name, kind)
        for name, kind in SETTINGS.items()
        if page.form.get(name, "").strip()
    }
