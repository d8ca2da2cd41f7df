"""What people decide about a batch. Each needs a reason, which the ledger keeps with their name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from helixqueue.engine import calls
from helixqueue.errors import Retryable
from helixqueue.operations.batch_actions import act_on_page
from helixqueue.records.batch import ActionPage
from helixqueue.service import answers
from helixqueue.service.batches import no_such_batch
from helixqueue.service.bodies import CancelBody, ReasonBody, RetryBody, SelectionBody
from helixqueue.service.problems import Problem
from helixqueue.service.routing import Asker, Note, demands, router

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helixqueue.operations.batch_actions import BatchFilters
    from helixqueue.service.principal import Principal
    from helixqueue.service.request_log import RequestLog

routes = router("people")

_VERBS: Final[dict[str, tuple[Callable[..., Any], str]]] = {
    "retry": (calls.retry, "FAILED becomes PENDING, with all tries anew"),
    "cancel": (calls.cancel, "Give a batch up, also while it runs: its worker's token dies"),
    "release": (calls.release_by_id, "Take a lease back from its worker, at no cost of an attempt"),
    "erase": (calls.erase, "Empty payload and result of a finished batch; the ledger stays"),
}


def _operation(verb: str) -> Callable[..., Awaitable[answers.VerdictAnswer]]:
    build, _ = _VERBS[verb]

    async def decide(
        batch_id: UUID, body: ReasonBody, asker: Asker, note: Note
    ) -> answers.VerdictAnswer:
        note.know(batch=batch_id, reason=body.reason)
        [verdict] = await asker.ask(
            build(ids=[batch_id], reason=body.reason, actor=asker.grant.name)
        )
        note.know(decision=verdict.answer)
        if verdict.answer == "refused":
            raise no_such_batch(batch_id)
        if verdict.answer == "busy":
            raise Retryable(f"batch {batch_id} is in other hands this moment")
        if verdict.answer == "illegal":
            why = f": {verdict.note}" if verdict.note else ""
            raise Problem(
                "illegal-transition",
                f"{verb}: batch {batch_id} is {verdict.state}{why}",
                got=None if verdict.state is None else f"one that is {verdict.state}",
                state=verdict.state,
                note=verdict.note,
            )
        return answers.verdict(verdict)

    return decide


for _verb, (_, _summary) in _VERBS.items():
    routes.add_api_route(
        f"/v1/batches/{{batch_id}}/{_verb}",
        _operation(_verb),
        methods=["POST"],
        name=_verb,
        operation_id=f"{_verb}_batch",
        response_model=answers.VerdictAnswer,
        summary=_summary,
        description="The reason and the token's name are kept in the ledger. Asked again, it is a "
        "`repeat` and changes nothing.",
        **demands("operate", "no-such-batch", "illegal-transition", fenced=True),
    )


RETRIED_BY_DEFAULT: Final = 100


async def _act(
    verb: str, body: SelectionBody, principal: Principal, log: RequestLog
) -> answers.ActionsAnswer:
    log.know(queue=body.queue, reason=body.reason)
    if body.batch_ids is not None:
        build, _ = _VERBS[verb]
        ids = list(dict.fromkeys(body.batch_ids))
        call = build(ids=ids, reason=body.reason, actor=principal.grant.name, dry_run=body.dry_run)
        page = ActionPage(tuple(await principal.ask(call)), None)
    else:
        page = await principal.do(
            act_on_page(
                principal.desk,
                verb,
                cast("BatchFilters", body.filters),
                body.reason,
                dry_run=body.dry_run,
                after=body.after,
                limit=body.limit or RETRIED_BY_DEFAULT,
            )
        )
    for result in page.rows:
        log.step(verb, batch=result.batch_id, decision=result.answer, state=result.state)
    log.know(count=len(page.rows), decision=sorted({result.answer for result in page.rows}) or None)
    return answers.ActionsAnswer(
        answers=[answers.verdict(result) for result in page.rows], next=page.next
    )


@routes.post(
    "/v1/batches/retry",
    response_model=answers.ActionsAnswer,
    name="retry_batches",
    summary="Retry failed batches by id or by filter",
    **demands("operate", "invalid-identity", fenced=True),
)
async def retry(*, body: RetryBody, asker: Asker, note: Note) -> answers.ActionsAnswer:
    """Retry batches: they become PENDING, with all their attempts again.

    Each batch has its own answer: `ok`, `repeat`, `illegal` for a batch that is not FAILED or has
    no payload any more, or `refused` for an unknown batch. Filters take the latest failures first;
    a batch that fails again meanwhile is not taken twice. A dry run answers the same and changes
    nothing. The ledger keeps the reason and the name of the token.
    """
    return await _act("retry", body, asker, note)


@routes.post(
    "/v1/batches/cancel",
    response_model=answers.ActionsAnswer,
    name="cancel_batches",
    summary="Cancel unfinished batches by id or by filter",
    **demands("operate", "invalid-identity", fenced=True),
)
async def cancel(*, body: CancelBody, asker: Asker, note: Note) -> answers.ActionsAnswer:
    """Cancel batches, also while they run: the leases of their workers end.

    Each batch has its own answer, as for retry.
    """
    return await _act("cancel", body, asker, note)
