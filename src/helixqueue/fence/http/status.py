"""The state of a request, for the client that sent it: `GET {status_path}/{fence}`.

A client that got `in-doubt` or `in-progress` reads it without sending the request again. The path
is behind authentication; a fence of another owner does not exist.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from helixqueue.engine import fences
from helixqueue.errors import HelixError
from helixqueue.fence.http.asgi import Scope, Send, respond
from helixqueue.fence.http.problem import FenceProblem, problem_of
from helixqueue.fence.policy import HTTP_PREFIX
from helixqueue.fence.receipt import receipt_of
from helixqueue.identity import PART_SEPARATOR, key_bytes, key_text
from helixqueue.states import FenceState

if TYPE_CHECKING:
    from helixqueue.fence.http.middleware import IdempotencyMiddleware
    from helixqueue.fence.http.request_key import Owners
    from helixqueue.fence.policy import Policy
    from helixqueue.records.fence import FenceRow

# What the state means for the client that sent the request.
MEANS: Final[dict[FenceState, str]] = {
    FenceState.CLAIMED: "the request is in progress; send it again for its response",
    FenceState.EFFECT_STARTED: "the request is in progress; send it again for its response",
    FenceState.SEALED: "the request took effect; send it again for its response",
    FenceState.RELEASED: "the request did not take effect; send it again to execute it",
    FenceState.IN_DOUBT: "the outcome is unknown; do not send the request with a new key",
}


def requested_fence(policy: Policy, scope: Scope) -> str | None:
    """The fence whose state is requested; None for any other request."""
    if policy.status_path is None or scope["method"] != "GET":
        return None
    base, _, fence = scope["path"].rpartition("/")
    return fence if base == policy.status_path else None


async def send_state(
    middleware: IdempotencyMiddleware, owners: Owners, fence: str, scope: Scope, send: Send
) -> None:
    row = await _read_row(middleware, owners, fence, scope)
    if isinstance(row, FenceProblem):
        await respond(send, *row.response())
        return
    body = json.dumps(state_of(row)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await respond(send, 200, headers, body)


async def _read_row(
    middleware: IdempotencyMiddleware, owners: Owners, fence: str, scope: Scope
) -> FenceRow | FenceProblem:
    owner = await owners.of(scope)
    if owner is None:
        return FenceProblem(
            "scope-unavailable", "expected a verified owner of this request, got none"
        )
    unknown = FenceProblem("no-such-fence", "expected a fence that a response to this client named")
    try:
        row = await middleware.fences.run(fences.find_fence(key_bytes(fence)))
    except ValueError:
        return unknown
    except HelixError as error:
        return problem_of(error, middleware.policy)
    return row if row is not None and _belongs_to(row, *owner) else unknown


def _belongs_to(row: FenceRow, tenant: str, principal: str | None) -> bool:
    if row.tenant != tenant or row.identity is None or not row.name.startswith(HTTP_PREFIX):
        return False
    *owner, _ = row.identity.split(PART_SEPARATOR)
    return owner == ([] if principal is None else [principal])


def state_of(row: FenceRow) -> dict[str, Any]:
    """What the sender may know: no hosts, processes or errors."""
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
