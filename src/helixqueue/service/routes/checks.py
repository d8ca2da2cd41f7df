"""Check and replay of the rows of the token's tenant."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import Query
from pydantic import BaseModel

from helixqueue.ledger.fold import Kind
from helixqueue.ledger.replay import document
from helixqueue.operate.check import CheckResult, invariants
from helixqueue.service.problems import Problem
from helixqueue.service.request_log import masked
from helixqueue.service.routing import PrincipalDep, ServiceDep, operation, router
from helixqueue.service.tenant_cipher import NUMBER_MAX

routes = router("checks")
SKIPPED: Final = "needs the database owner: a token may not read the rows"
VIOLATIONS_MAX: Final = 1_000


class InvariantResponse(BaseModel):
    name: str
    promise: str
    count: int
    meaning: str
    remedy: str
    witnesses: list[dict[str, Any]]
    skipped: str | None
    late: bool
    holds: bool


class CheckResponse(BaseModel):
    ok: bool
    every_tenant: bool
    results: list[InvariantResponse]


class ViolationResponse(BaseModel):
    kind: Kind
    batch: int
    message: str
    witnesses: list[dict[str, Any]]


class ReplayResponse(BaseModel):
    events: int
    batches: int
    retired: int
    violated: int
    violations: list[ViolationResponse]
    next: int | None


@routes.get(
    "/v1/check",
    response_model=CheckResponse,
    name="check",
    summary="Check every invariant",
    **operation("operate", "check-under-way"),
)
async def check(
    principal: PrincipalDep,
    service: ServiceDep,
    invariant: Annotated[
        list[str] | None, Query(max_length=100, description="Names of invariants; default: all.")
    ] = None,
) -> CheckResponse:
    """Runs in one snapshot, over the rows of the token's tenant, while work continues.

    Invariants over rows that only the database owner may read are skipped, with the reason. The
    check ends after a minute: the remaining invariants are skipped as `late`, and `ok` is false.
    Then check each of them separately, as `helixq check` does.
    """
    unknown = sorted(set(invariant or ()) - invariants().keys())
    if unknown:
        raise Problem(
            "invalid-request",
            "unknown invariant",
            expected="names as in the response",
            got=masked(unknown[0])[:60],
        )
    results = await service.check_jobs.check(principal, invariant)
    return CheckResponse(
        ok=all(result.count == 0 and not result.late for result in results),
        every_tenant=False,
        results=[
            InvariantResponse(
                **asdict(result) | {"skipped": _skipped(result)},
                holds=result.holds,
                late=result.late,
            )
            for result in results
        ],
    )


def _skipped(result: CheckResult) -> str | None:
    return result.skipped if result.late else result.skipped and SKIPPED


@routes.get(
    "/v1/replay",
    response_model=ReplayResponse,
    name="replay",
    summary="Replay a range of the ledger and compare it with the current states",
    **operation("operate", "check-under-way"),
)
async def replay(
    principal: PrincipalDep,
    service: ServiceDep,
    behind: Annotated[
        int | None,
        Query(ge=0, le=NUMBER_MAX, description="Start after it: `next` of the previous response."),
    ] = None,
    limit: Annotated[
        int, Query(ge=0, le=VIOLATIONS_MAX, description="Maximum number of violations.")
    ] = 100,
) -> ReplayResponse:
    """Runs in a snapshot for a few seconds; pass `next` as `behind` until it is null.

    Each batch is compared separately, so all ranges together cover the ledger of the tenant.
    """
    cipher = await principal.cipher()
    after = 0 if behind is None else cipher.reveal(behind)
    result = await service.check_jobs.replay(principal, after=after, limit=limit)
    return ReplayResponse(
        events=result.events,
        batches=result.batches,
        retired=result.retired,
        violated=result.violated,
        violations=[
            ViolationResponse(**document(violation, entries=False))
            for violation in result.violations
        ],
        next=None if result.stopped_at is None else cipher.hide(result.stopped_at),
    )
