"""How a request stands, for the client that sent it: `GET {status_path}/{fence}`.

For those who were told `in-doubt` or `in-progress` and want to look without sending the request
again. Behind authentication as everything here; somebody else's fence is no fence.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from helixqueue.engine import fences
from helixqueue.errors import HelixError
from helixqueue.fence.http.asgi import Scope, Send, respond
from helixqueue.fence.http.problem import FenceProblem
from helixqueue.fence.http.refusal import problem_of
from helixqueue.fence.receipt import receipt_of
from helixqueue.identity import PART_SEPARATOR, key_bytes, key_text
from helixqueue.states import FenceState

if TYPE_CHECKING:
    from helixqueue.fence.http.middleware import IdempotencyMiddleware
    from helixqueue.fence.http.request_key import Owners
    from helixqueue.fence.policy import Policy
    from helixqueue.records.fence import FenceRow

# What the state means for whoever sent the request.
MEANS: Final[dict[FenceState, str]] = {
    FenceState.CLAIMED: "it is being worked on; send the same request again for its answer",
    FenceState.EFFECT_STARTED: "it is being worked on; send the same request again for its answer",
    FenceState.SEALED: "it took effect; send the same request again for its answer",
    FenceState.RELEASED: "it did not take effect; send the same request again to have it done",
    FenceState.IN_DOUBT: "nobody knows yet whether it took effect; do not send it under a new key",
}


def asked_for(policy: Policy, scope: Scope) -> str | None:
    """The fence whose state is asked for, if that is what this request does."""
    if policy.status_path is None or scope["method"] != "GET":
        return None
    base, _, fence = scope["path"].rpartition("/")
    return fence if base == policy.status_path else None


async def tell_state(
    ours: IdempotencyMiddleware, owners: Owners, fence: str, scope: Scope, send: Send
) -> None:
    found = await _found(ours, owners, fence, scope)
    if isinstance(found, FenceProblem):
        await respond(send, *found.response())
        return
    body = json.dumps(state_of(found)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await respond(send, 200, headers, body)


async def _found(
    ours: IdempotencyMiddleware, owners: Owners, fence: str, scope: Scope
) -> FenceRow | FenceProblem:
    owner = await owners.of(scope)
    if owner is None:
        return FenceProblem(
            "scope-unavailable", "expected to know whose request this is, got nobody"
        )
    nowhere = FenceProblem(
        "no-such-fence", "expected a fence of yours, such as an answer has named"
    )
    try:
        row = await ours.fences.run(fences.find_fence(key_bytes(fence)))
    except ValueError:
        return nowhere
    except HelixError as refused:
        return problem_of(refused, ours.policy)
    return row if row is not None and _is_owners(row, *owner) else nowhere


def _is_owners(row: FenceRow, tenant: str, principal: str | None) -> bool:
    if row.tenant != tenant or row.identity is None or not row.name.startswith("http "):
        return False
    *before, _ = row.identity.split(PART_SEPARATOR)
    return before == ([] if principal is None else [principal])


def state_of(row: FenceRow) -> dict[str, Any]:
    """What its sender may know: nothing of hosts, processes and errors."""
    sealed = row.state is FenceState.SEALED
    until = row.answer_until if row.answer_kept else None
    return {
        "fence": key_text(row.key),
        "state": row.state,
        "means": MEANS[row.state],
        "since": row.changed_at.isoformat(),
        "attempt": row.attempt,
        "receipt": receipt_of(row).id if sealed else None,
        "answer_until": None if until is None else until.isoformat(),
    }
