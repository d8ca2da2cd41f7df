"""From our errors to answers: which problem a client is shown, and how much of a difference."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from helixqueue.errors import (
    Conflict,
    HelixError,
    InDoubt,
    InProgress,
    LeaseLost,
    NotPermitted,
)
from helixqueue.fence.http.problem import FenceProblem

if TYPE_CHECKING:
    from helixqueue.fence.policy import Policy

log = logging.getLogger("helixqueue.fence.http")


def problem_of(refused: HelixError, policy: Policy) -> FenceProblem:
    if isinstance(refused, Conflict):
        return _mismatch(refused, policy)
    # Our messages name hosts and processes. The client learns nothing of the inside; whoever runs
    # it does.
    if isinstance(refused, InProgress):
        log.info("idempotency: %s", refused)
        return FenceProblem(
            "in-progress",
            "send the same request again after Retry-After",
            retry_after=refused.retry_after,
            status_url=status_url(policy, refused.key),
        )
    if isinstance(refused, LeaseLost):
        log.warning("idempotency: %s", refused)
        return FenceProblem(
            "in-progress", "another try took over; ask for its answer", retry_after=1
        )
    if isinstance(refused, InDoubt):
        log.warning("idempotency: %s", refused)
        return _doubt(refused, policy)
    if isinstance(refused, NotPermitted):
        log.error("idempotency: the database role may not act for this tenant: %s", refused)
        return FenceProblem("scope-unavailable", "this service may not act for the tenant")
    log.error("idempotency: the store is away: %s", refused)
    return FenceProblem("storage-unavailable", "nothing was done; try again later", retry_after=1)


def _doubt(refused: InDoubt, policy: Policy) -> FenceProblem:
    return FenceProblem(
        "in-doubt",
        "it was begun and nobody knows how it ended; send no new key, ask whoever runs this",
        retry_after=refused.retry_after or None,
        more={"fence": refused.key},
        describedby=policy.documentation,
        status_url=status_url(policy, refused.key),
    )


def status_url(policy: Policy, key: str | None) -> str | None:
    return None if policy.status_path is None or key is None else f"{policy.status_path}/{key}"


def _mismatch(refused: Conflict, policy: Policy) -> FenceProblem:
    rules = policy.on_conflict
    more: dict[str, Any] = {}
    if rules.include_diff != "none":
        shown = [_shown(op, values=rules.include_diff == "values", mask=rules.mask)
                 for op in refused.diff]  # fmt: skip
        more = {"diff": shown}
    return FenceProblem(
        "key-reused",
        "send the first request again, or this one under a new key",  # where, only as `diff` shows
        status=rules.status,
        more=more,
        describedby=policy.documentation,
    )


def _shown(op: dict[str, Any], *, values: bool, mask: tuple[str, ...]) -> dict[str, Any]:
    """An operation as far as the client may see it; a difference is a disclosure."""
    if not values:
        return {"op": op["op"], "path": op["path"]}
    # The policy speaks of the body; the compared document has it under /body.
    hidden = any(_holds(op["path"], f"/body{pointer}") for pointer in mask)
    return {
        name: "(masked)" if hidden and name in {"value", "was"} else value
        for name, value in op.items()
    }


def _holds(path: str, pointer: str) -> bool:
    """Whether what stands at `path` is, contains or is inside of what `pointer` names."""
    one, other = path.split("/"), pointer.split("/")
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
