"""Fences as their tenant sees them: which stand where, and the story of one.

A doubt is decided by a person with `helixq fence resolve`, which needs an operator's login.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Query

from helixqueue.fence.receipt import key_bytes
from helixqueue.service import fence_answers as answers
from helixqueue.service.problems import Problem
from helixqueue.service.routing import Asker, demands, router
from helixqueue.states import FenceState
from helixqueue.store import fences

STATUS_PATH: Final = "/v1/fences"
routes = router("fences")


@routes.get(
    STATUS_PATH,
    response_model=answers.FencesAnswer,
    name="list_fences",
    summary="Fences, newest first",
    **demands("read"),
)
async def fences_listed(
    asker: Asker,
    fence_state: Annotated[
        FenceState | None, Query(description="Only these; IN_DOUBT awaits a person.")
    ] = None,
    fence_name: Annotated[str | None, Query(max_length=255, description="What is fenced.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="At most so many.")] = 50,
) -> answers.FencesAnswer:
    """Where each stands and since when; errors that callers met are for the scope payloads."""
    rows = await asker.ask(
        fences.listed(tenant=asker.tenant, name=fence_name, state=fence_state, limit=limit)
    )
    return answers.FencesAnswer(
        fences=[answers.fence(row, details=asker.sees_payloads) for row in rows]
    )


@routes.get(
    STATUS_PATH + "/{fence}",
    response_model=answers.FenceStoryAnswer,
    name="show_fence",
    summary="One fence and its story",
    **demands("read", "no-such-fence"),
)
async def fence_shown(
    fence: Annotated[str, Path(max_length=100, description="A fence, as an answer named it.")],
    asker: Asker,
) -> answers.FenceStoryAnswer:
    """What its state means for whoever sent the request, every step, and every repeat."""
    try:
        rows = await asker.ask(fences.listed(tenant=asker.tenant, key=key_bytes(fence), limit=1))
    except ValueError:
        rows = []
    if not rows:
        raise Problem("no-such-fence", "the tenant has no such fence", got=fence)
    story = await asker.ask(fences.story(rows[0].life))
    return answers.story(rows[0], story, details=asker.sees_payloads)
