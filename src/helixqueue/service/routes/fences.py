"""Fences: list, show, resolve, rehearse.

The database checks the token itself before it resolves a fence in doubt, so that the service
cannot grant that permission.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Query

from helixqueue.engine import fences
from helixqueue.engine.fences import Times
from helixqueue.fence.rehearsal import call_of
from helixqueue.fence.resolution import resolved_result
from helixqueue.identity import canonical_text, key_bytes
from helixqueue.records.fence import FenceRow
from helixqueue.service.models import fences as models
from helixqueue.service.models.fences import RehearseRequest, ResolveRequest
from helixqueue.service.models.requests import Cursor
from helixqueue.service.problems import Problem
from helixqueue.service.routing import PrincipalDep, RequestLogDep, ServiceDep, operation, router
from helixqueue.service.settings import MAX_PAGE
from helixqueue.states import FenceState

STATUS_PATH: Final = "/v1/fences"
routes = router("fences")
FenceKey = Annotated[str, Path(max_length=100, description="Key of the fence.")]


@routes.get(
    STATUS_PATH,
    response_model=models.FencePageResponse,
    name="list_fences",
    summary="List fences, newest first",
    **operation("read"),
)
async def list_fences(
    principal: PrincipalDep,
    service: ServiceDep,
    *,
    fence_state: Annotated[
        FenceState | None, Query(description="State; fences IN_DOUBT wait for an operator.")
    ] = None,
    fence_name: Annotated[
        str | None, Query(max_length=255, description="Name of the guarded effect.")
    ] = None,
    after: Annotated[Cursor | None, Query(description="`next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> models.FencePageResponse:
    """State and times of each fence; error details need the scope payloads.

    A page reads a limited number of fences: it may be short or empty and still have a `next`.
    """
    page = await principal.execute(
        fences.list_fences(
            tenant=principal.tenant,
            name=fence_name,
            state=fence_state,
            after=await principal.open_cursor(after),
            limit=limit,
        )
    )
    return models.FencePageResponse(
        fences=[
            models.fence(row, details=principal.sees_payloads, signer=service.signer)
            for row in page.rows
        ],
        next=await principal.seal_cursor(page.next),
    )


@routes.get(
    STATUS_PATH + "/{fence}",
    response_model=models.FenceDetailResponse,
    name="show_fence",
    summary="Show a fence and its history",
    **operation("read", "no-such-fence"),
)
async def show_fence(
    fence: FenceKey, principal: PrincipalDep, service: ServiceDep
) -> models.FenceDetailResponse:
    """Its state and what that means for the client, every step, and every repeat."""
    row = await _find(fence, principal)
    events = await principal.execute(fences.fence_history(row.key))
    return models.fence_detail(row, events, details=principal.sees_payloads, signer=service.signer)


@routes.post(
    STATUS_PATH + "/{fence}/resolve",
    response_model=models.FenceResponse,
    name="resolve_fence",
    summary="Resolve a fence in doubt",
    **operation("operate", "no-such-fence", "not-in-doubt", fenced=True),
)
async def resolve(
    fence: FenceKey,
    body: ResolveRequest,
    principal: PrincipalDep,
    service: ServiceDep,
    request_log: RequestLogDep,
) -> models.FenceResponse:
    """First find out in the other system whether the effect happened.

    With `applied` the fence is sealed, and repeats get `result`, or learn that the effect happened.
    Without, the next call runs the effect. With `correct` an earlier resolution is replaced. The
    history of the fence stores the reason and the token's name.
    """
    request_log.add(fence=fence, reason=body.reason)
    row = await _find(fence, principal)
    result = await principal.run(
        fences.resolve_by_token(
            principal.token_hash,
            row.key,
            body.version,
            Times(),
            reason=body.reason,
            result=_result(body, row),
            correct=body.correct,
        )
    )
    request_log.add(decision="stale" if result.decision == "stale" else "resolved")
    now = await _find(fence, principal)
    if result.decision == "stale":
        raise Problem(
            "not-in-doubt",
            f"the fence is {now.state}, version {now.version}; nothing was changed",
            expected=f"{_expected_state(body)}, version {body.version}",
            got=f"{now.state}, version {now.version}",
            state=now.state,
            version=now.version,
        )
    return models.fence(now, details=principal.sees_payloads, signer=service.signer)


@routes.post(
    "/v1/rehearse",
    response_model=models.RehearseResponse,
    name="rehearse",
    summary="Predict the decisions on fenced calls without running them",
    **operation("payloads"),
)
async def rehearse(body: RehearseRequest, principal: PrincipalDep) -> models.RehearseResponse:
    """Each call is evaluated separately, in the order of the list. Nothing is claimed.

    Needs the scope payloads: the decision discloses whether a payload equals the stored one.
    """
    calls = [call_of(item.model_dump(exclude_unset=True)) for item in body.calls]
    previews = await principal.execute(fences.preview(tenant=principal.tenant, calls=calls))
    return models.RehearseResponse(calls=[models.fence_preview(*row) for row in previews])


async def _find(fence: str, principal: PrincipalDep) -> FenceRow:
    try:
        row = await principal.execute(fences.find_fence(key_bytes(fence)))
    except ValueError:
        row = None
    if row is None:
        raise Problem("no-such-fence", "the tenant has no such fence", got=fence)
    return row


def _expected_state(body: ResolveRequest) -> str:
    return "a resolution as the last step" if body.correct else "IN_DOUBT"


def _result(body: ResolveRequest, row: FenceRow) -> fences.FenceResult | None:
    if not body.applied:
        return None
    result = canonical_text(body.result) if "result" in body.model_fields_set else None
    return resolved_result(
        row.name, effect=body.effect, result=result, http_status=body.http_status
    )
