"""Fences: effects outside the database; those in doubt first, for a person to decide."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Query
from starlette.responses import Response

from helixqueue.dashboard.page import After, PageDep, action, go_to, page_router, view
from helixqueue.dashboard.rendering import url
from helixqueue.errors import Refused
from helixqueue.fence import operations
from helixqueue.states import FenceState

routes = page_router()
DOUBTS: Final = 10
TABS: Final = (
    (None, "All"),
    (FenceState.IN_DOUBT, "In doubt"),
    (FenceState.EFFECT_STARTED, "Running"),
    (FenceState.SEALED, "Sealed"),
    (FenceState.RELEASED, "Released"),
)


@view(routes, "/fences")
async def fences(
    page: PageDep,
    state: FenceState | None = None,
    name: Annotated[str | None, Query(max_length=255)] = None,
    after: After = None,
) -> Response:
    found = await page.ask(operations.list_fences, state=state, name=name, after=after)
    doubts = await page.ask(operations.list_fences, state=FenceState.IN_DOUBT, limit=DOUBTS)
    return await page.show(
        "fences.html",
        found=found,
        doubts=doubts.rows if after is None and state in {None, FenceState.IN_DOUBT} else (),
        state=state,
        name=name,
        tabs=TABS,
    )


@view(routes, "/fences/{fence}")
async def fence(page: PageDep, fence: str) -> Response:
    return await page.show("fence.html", fence=await page.ask(operations.show_fence, fence=fence))


@action(routes, "/fences/{fence}/resolve")
async def resolve(page: PageDep, fence: str) -> Response:
    """What a person found out in the other system; void after another decision."""
    applied: dict[str, bool] = {"yes": True, "no": False}
    if page.form.get("applied") not in applied:
        raise Refused("applied: expected a choice, got none; choose whether the effect took place")
    values: dict[str, Any] = {}
    if applied[page.form["applied"]] and page.form.get("effect", "").strip():
        values["effect"] = page.form["effect"].strip()
    await page.ask(
        operations.resolve_fence,
        fence=fence,
        reason=page.reason,
        version=int(page.number("version", int)),
        applied=applied[page.form["applied"]],
        **values,
    )
    return go_to(url("fences", fence))
