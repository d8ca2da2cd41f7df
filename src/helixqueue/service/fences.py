"""Fences as their tenant sees them: which stand where, the story of one, and what a person decides.

The database looks at the token itself before a doubt is decided: what operators may is not the
service's to give.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Query

from helixqueue.engine import fences
from helixqueue.engine.fences import Times
from helixqueue.fence.rehearsal import call_of
from helixqueue.fence.resolution import answer_of
from helixqueue.identity import canonical_text, key_bytes
from helixqueue.records.fence import FenceRow
from helixqueue.service import fence_answers as answers
from helixqueue.service.bodies import Cursor
from helixqueue.service.fence_bodies import RehearseBody, ResolveBody
from helixqueue.service.problems import Problem
from helixqueue.service.routing import Asker, Note, demands, router
from helixqueue.service.settings import MAX_PAGE
from helixqueue.states import FenceState

STATUS_PATH: Final = "/v1/fences"
routes = router("fences")
FenceKey = Annotated[str, Path(max_length=100, description="A fence, as an answer named it.")]


@routes.get(
    STATUS_PATH,
    response_model=answers.FencesAnswer,
    name="list_fences",
    summary="A page of fences, newest first",
    **demands("read"),
)
async def fences_listed(
    asker: Asker,
    fence_state: Annotated[
        FenceState | None, Query(description="Only these; IN_DOUBT awaits a person.")
    ] = None,
    fence_name: Annotated[str | None, Query(max_length=255, description="What is fenced.")] = None,
    after: Annotated[Cursor | None, Query(description="The `next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> answers.FencesAnswer:
    """Where each stands and since when; errors that callers met are for the scope payloads.

    A page looks at a bounded number of fences: it may be short, even empty, and have a `next`.
    """
    page = await asker.ask(
        fences.list_fences(
            tenant=asker.tenant, name=fence_name, state=fence_state, after=after, limit=limit
        )
    )
    return answers.FencesAnswer(
        fences=[answers.fence(row, details=asker.sees_payloads) for row in page.rows],
        next=page.next,
    )


@routes.get(
    STATUS_PATH + "/{fence}",
    response_model=answers.FenceStoryAnswer,
    name="show_fence",
    summary="One fence and its story",
    **demands("read", "no-such-fence"),
)
async def fence_shown(fence: FenceKey, asker: Asker) -> answers.FenceStoryAnswer:
    """What its state means for whoever sent the request, every step, and every repeat."""
    row = await _found(fence, asker)
    story = await asker.ask(fences.fence_history(row.key))
    return answers.story(row, story, details=asker.sees_payloads)


@routes.post(
    STATUS_PATH + "/{fence}/resolve",
    response_model=answers.FenceAnswer,
    name="resolve_fence",
    summary="Decide a doubt, for a reason that is kept",
    **demands("operate", "no-such-fence", "not-in-doubt", fenced=True),
)
async def resolve(
    fence: FenceKey, body: ResolveBody, asker: Asker, note: Note
) -> answers.FenceAnswer:
    """Look first where the effect would be.

    With `applied` it is sealed, and repeats get `result`, or are told that it happened; without,
    the next call does it. The reason and the token's name are kept in the fence's story.
    """
    note.know(fence=fence, reason=body.reason)
    row = await _found(fence, asker)
    told = await asker.run(
        fences.resolve_by_token(
            asker.token_hash,
            row.key,
            body.version,
            Times(),
            reason=body.reason,
            answer=_answer(body),
        )
    )
    note.know(decision="stale" if told.decision == "stale" else "resolved")
    now = await _found(fence, asker)
    if told.decision == "stale":
        raise Problem(
            "not-in-doubt",
            f"the fence is {now.state}, version {now.version}; nothing was changed",
            expected=f"IN_DOUBT, version {body.version}",
            got=f"{now.state}, version {now.version}",
            state=now.state,
            version=now.version,
        )
    return answers.fence(now, details=asker.sees_payloads)


@routes.post(
    "/v1/rehearse",
    response_model=answers.RehearsedAnswer,
    name="rehearse",
    summary="What would happen if these calls came again; nothing does",
    **demands("payloads"),
)
async def rehearse(body: RehearseBody, asker: Asker) -> answers.RehearsedAnswer:
    """Each is judged by itself, in the order of the list, and nothing is claimed.

    Needs the scope payloads: whether a key stands for a payload tells of the stored one.
    """
    asked = [call_of(one.model_dump(exclude_unset=True)) for one in body.calls]
    found = await asker.ask(fences.preview(tenant=asker.tenant, calls=asked))
    return answers.RehearsedAnswer(calls=[answers.foreseen(*one) for one in found])


async def _found(fence: str, asker: Asker) -> FenceRow:
    try:
        row = await asker.ask(fences.find_fence(key_bytes(fence)))
    except ValueError:
        row = None
    if row is None:
        raise Problem("no-such-fence", "the tenant has no such fence", got=fence)
    return row


def _answer(body: ResolveBody) -> fences.FenceResult | None:
    if not body.applied:
        return None
    result = canonical_text(body.result) if "result" in body.model_fields_set else None
    return answer_of(effect=body.effect, result=result, http_status=body.http_status)
