"""Operator actions on a batch. The ledger stores their reason and the token's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from helixqueue.engine import calls
from helixqueue.errors import Retryable
from helixqueue.operations.batch_actions import act_on_page
from helixqueue.records.batch import ActionPage, ActionResult
from helixqueue.service.models import responses
from helixqueue.service.models.requests import (
    BatchSelectionRequest,
    CancelBatchesRequest,
    EraseRequest,
    ReasonRequest,
    RetryBatchesRequest,
)
from helixqueue.service.problems import Problem, no_such_batch
from helixqueue.service.routing import PrincipalDep, RequestLogDep, hot_router, operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helixqueue.operations.batch_actions import BatchFilters

routes = hot_router("batch actions")
DEFAULT_LIMIT: Final = 100

_ACTIONS: Final[dict[str, tuple[Callable[..., Any], str]]] = {
    "retry": (calls.retry, "Retry a failed batch with all its attempts"),
    "cancel": (calls.cancel, "Cancel a batch, even while it runs: its lease ends"),
    "release": (calls.release_by_id, "End the lease of a batch; the attempt does not count"),
    "erase": (calls.erase, "Delete what a finished batch was about; the ledger stays"),
}


def _endpoint(name: str) -> Callable[..., Awaitable[ActionResult]]:
    call, _ = _ACTIONS[name]
    model = EraseRequest if name == "erase" else ReasonRequest

    async def act(
        batch_id: UUID, body: ReasonRequest, principal: PrincipalDep, request_log: RequestLogDep
    ) -> ActionResult:
        request_log.add(batch=batch_id, reason=body.reason)
        options = {"identity": body.identity} if isinstance(body, EraseRequest) else {}
        [result] = await principal.execute(
            call(ids=[batch_id], reason=body.reason, actor=principal.grant.name, **options)
        )
        request_log.add(decision=result.answer)
        if result.answer == "refused":
            raise no_such_batch(batch_id)
        if result.answer == "busy":
            raise Retryable(f"another transaction is changing batch {batch_id}")
        if result.answer == "illegal":
            reason = f": {result.note}" if result.note else ""
            raise Problem(
                "illegal-transition",
                f"{name}: batch {batch_id} is {result.state}{reason}",
                got=None if result.state is None else f"a batch that is {result.state}",
                state=result.state,
                note=result.note,
            )
        return responses.action(result, with_identity=principal.reads_batches)

    act.__annotations__["body"] = model
    return act


for _name, (_, _summary) in _ACTIONS.items():
    routes.add_api_route(
        f"/v1/batches/{{batch_id}}/{_name}",
        _endpoint(_name),
        methods=["POST"],
        name=_name,
        operation_id=f"{_name}_batch",
        response_model=ActionResult,
        summary=_summary,
        description="The ledger stores the reason and the token's name. A repeat has the answer "
        "`repeat` and changes nothing.",
        **operation("operate", "no-such-batch", "illegal-transition", fenced=True),
    )


@routes.post(
    "/v1/batches/retry",
    response_model=responses.ActionsResponse,
    name="retry_batches",
    summary="Retry failed batches by id or by filter",
    **operation("operate", "invalid-identity", fenced=True),
)
async def retry_batches(
    body: RetryBatchesRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> responses.ActionsResponse:
    """Retry batches: they become PENDING, with all their attempts again.

    Each batch has its own answer: `ok`, `repeat`, `illegal` for a batch that is not FAILED or has
    no payload any more, or `refused` for an unknown batch. Filters take the latest failures first;
    a batch that fails again meanwhile is not taken twice. A dry run has the same answers and
    changes nothing. The ledger stores the reason and the token's name.
    """
    return await _act_on_selection("retry", body, principal, request_log)


@routes.post(
    "/v1/batches/cancel",
    response_model=responses.ActionsResponse,
    name="cancel_batches",
    summary="Cancel unfinished batches by id or by filter",
    **operation("operate", "invalid-identity", fenced=True),
)
async def cancel_batches(
    body: CancelBatchesRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> responses.ActionsResponse:
    """Cancel batches, even while they run: their leases end.

    Each batch has its own answer, as for retry.
    """
    return await _act_on_selection("cancel", body, principal, request_log)


async def _act_on_selection(
    name: str, body: BatchSelectionRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> responses.ActionsResponse:
    request_log.add(queue=body.queue, reason=body.reason)
    if body.batch_ids is not None:
        build, _ = _ACTIONS[name]
        ids = list(dict.fromkeys(body.batch_ids))
        call = build(ids=ids, reason=body.reason, actor=principal.grant.name, dry_run=body.dry_run)
        page = ActionPage(tuple(await principal.execute(call)), None)
    else:
        page = await principal.run_steps(
            act_on_page(
                principal.operations,
                name,
                cast("BatchFilters", body.filters),
                body.reason,
                dry_run=body.dry_run,
                after=await principal.open_cursor(body.after),
                limit=body.limit or DEFAULT_LIMIT,
            )
        )
    for result in page.rows:
        request_log.add_step(
            name, batch=result.batch_id, decision=result.answer, state=result.state
        )
    decisions = sorted({result.answer for result in page.rows})
    request_log.add(count=len(page.rows), decision=decisions or None)
    return responses.ActionsResponse(
        answers=[
            responses.action(result, with_identity=principal.reads_batches) for result in page.rows
        ],
        next=await principal.seal_cursor(page.next),
    )
