"""Activity: what people and applications changed, with their reasons."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from helixqueue.dashboard.page import After, PageDep, page_router, view
from helixqueue.dashboard.pages.queue import SETTINGS
from helixqueue.operations import overview as operations

if TYPE_CHECKING:
    from helixqueue.records.overview import Activity

routes = page_router()


@view(routes, "/activity")
async def activity(page: PageDep, after: After = None) -> Response:
    found = await page.ask(operations.list_activity, after=after)
    rows = [(row, *reason_and_values(row)) for row in found.rows]
    return await page.show("activity.html", rows=rows, next=found.next)


def reason_and_values(row: Activity) -> tuple[str, str]:
    """The reason of an action, and the settings that it left behind."""
    settings = _settings(row)
    states = [name for name in ("paused", "closed") if settings.get(name) is True]
    values = [
        f"{name.removesuffix('_seconds').replace('_', ' ')} {_value(name, settings[name])}"
        for name in SETTINGS
        if isinstance(settings.get(name), int | float)
    ]
    reason = str(settings.get("reason") or "")
    if not reason and not values:
        return row.detail or "", ""
    return reason, ", ".join([*states, *values])


def _value(name: str, value: float) -> str:
    if name.startswith("keep_") and not value:
        return "forever"
    return f"{value:g} s" if name.endswith("_seconds") else f"{value:g}"


def _settings(row: Activity) -> dict[str, Any]:
    """The detail of a setting is JSON; that of any other action is a text of a person."""
    if row.action != "set":
        return {}
    try:
        detail = json.loads(row.detail or "")
    except ValueError:
        return {}
    return detail if isinstance(detail, dict) else {}
