"""Check and replay of the rows of the token's tenant."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Query
from pydantic import BaseModel

from helixqueue.engine.cursors import after_number
from helixqueue.ledger.fold import Kind
from helixqueue.log.lines import masked
from helixqueue.operate.check import invariants, report
from helixqueue.records.parameter import Cursor
from helixqueue.service.problems import Problem
from helixqueue.service.routing import PrincipalDep, ServiceDep, operation, router

routes = router("checks")
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
    next: str | None


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
) -> dict[str, Any]:
    """Runs in one snapshot, over the rows of the token's tenant, while work continues.

    Invariants over rows that only the database owner may read are skipped, with the reason. The
    check ends after a minute: the remaining invariants are skipped as `late`, and `ok` is false.
    Then check each of them separately, as `helixq check` does. A run of all invariants is recorded:
    see `/v1/checks`.
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
    return report(results, every_tenant=False)


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
    after: Annotated[Cursor | None, Query()] = None,
    limit: Annotated[
        int, Query(ge=0, le=VIOLATIONS_MAX, description="Maximum number of violations.")
    ] = 100,
) -> dict[str, Any]:
    """Runs in a snapshot for a few seconds; pass `next` as `after` until it is null.

    Each batch is compared separately, so all ranges together cover the ledger of the tenant.
    """
    start = after_number(await principal.open_cursor(after), 0)
    result = await service.check_jobs.replay(principal, after=start, limit=limit)
    stopped_at = None if result.stopped_at is None else str(result.stopped_at)
    return result.document(entries=False) | {"next": await principal.seal_cursor(stopped_at)}
