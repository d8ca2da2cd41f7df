"""What people decide about a batch. Each needs a reason, which the ledger keeps with their name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from helixqueue.engine import calls
from helixqueue.errors import Retryable
from helixqueue.service import answers
from helixqueue.service.batches import no_such_batch
from helixqueue.service.bodies import ReasonBody
from helixqueue.service.problems import Problem
from helixqueue.service.routing import Asker, Note, demands, router

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
