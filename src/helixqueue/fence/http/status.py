"""The state of a request, for the client that sent it: `GET {status_path}/{fence}`.

A client that got `in-doubt` or `in-progress` reads it without sending the request again. The path
is behind authentication; a fence of another owner does not exist.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from helixqueue.engine import fences
from helixqueue.errors import HelixError
from helixqueue.fence.http.application import path_seen
from helixqueue.fence.http.asgi import Scope, Send, respond
from helixqueue.fence.http.problem import FenceProblem, problem_of
from helixqueue.fence.policy import HTTP_PREFIX
from helixqueue.identity import key_bytes
from helixqueue.records.fence import MEANS

if TYPE_CHECKING:
    from helixqueue.fence.http.execute import FencedApp
    from helixqueue.fence.policy import Policy
    from helixqueue.records.fence import FenceRow


def requested_fence(policy: Policy, scope: Scope) -> str | None:
    """The fence whose state is requested; None for any other request."""
    if policy.status_path is None or scope["method"] != "GET":
        return None
    base, _, fence = path_seen(scope).rpartition("/")
    return fence if base == policy.status_path else None


async def send_state(fenced: FencedApp, fence: str, scope: Scope, send: Send) -> None:
    row = await _read_row(fenced, fence, scope)
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


async def _read_row(fenced: FencedApp, fence: str, scope: Scope) -> FenceRow | FenceProblem:
    owner = await fenced.owners.of(scope)
    if owner is None:
        return FenceProblem(
            "scope-unavailable", "expected a verified owner of this request, got none"
        )
    unknown = FenceProblem("no-such-fence", "expected a fence that a response to this client named")
    try:
        row = await fenced.fences.run(fences.find_fence(key_bytes(fence)))
    except ValueError:
        return unknown
    except HelixError as error:
        return problem_of(error, fenced.policy)
    return row if row is not None and _belongs_to(row, *owner) else unknown


def _belongs_to(row: FenceRow, tenant: str, principal: str | None) -> bool:
    if row.tenant != tenant or row.identity is None or not row.name.startswith(HTTP_PREFIX):
        return False
    *owner, _ = row.identity
    return owner == ([] if principal is None else [principal])


def state_of(row: FenceRow) -> dict[str, Any]:
    """What the sender may know: no hosts, processes or errors."""
    until = row.answer_until if row.answer_kept else None
    return {
        "fence": row.fence,
        "state": row.state,
        "means": MEANS[row.state],
        "since": row.changed_at.isoformat(),
        "attempt": row.attempt,
        "receipt": row.receipt,
        "answer_until": None if until is None else until.isoformat(),
    }
