"""Check and replay, for whoever operates: the rows of the token's tenant, and nobody else's."""

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
from helixqueue.service.routing import Asker, Here, demands, router

routes = router("audit")
SKIPPED: Final = "not with a token: it rests on what only the database's owner may read"
VIOLATIONS_MAX: Final = 1_000


class InvariantAnswer(BaseModel):
    name: str
    promise: str
    count: int
    meaning: str
    remedy: str
    witnesses: list[dict[str, Any]]
    skipped: str | None
    late: bool
    holds: bool


class CheckAnswer(BaseModel):
    ok: bool
    every_tenant: bool
    results: list[InvariantAnswer]


class ViolationAnswer(BaseModel):
    kind: Kind
    batch: int
    message: str
    witnesses: list[dict[str, Any]]


class ReplayAnswer(BaseModel):
    events: int
    batches: int
    retired: int
    violated: int
    violations: list[ViolationAnswer]
    next: int | None


@routes.get(
    "/v1/check",
    response_model=CheckAnswer,
    name="check",
    summary="Every invariant, with witnesses",
    **demands("operate", "check-under-way"),
)
async def checked(
    asker: Asker,
    here: Here,
    invariant: Annotated[
        list[str] | None, Query(max_length=100, description="Only these, by name; else all.")
    ] = None,
) -> CheckAnswer:
    """In one snapshot, over the rows of the token's tenant; work may go on.

    Those that rest on what only the owner of the database may read are skipped, and say so. It ends
    in a minute: those that did not fit are skipped as `late`, and `ok` is false. Ask for
    each of them by itself, as `helixq check` does.
    """
    unknown = sorted(set(invariant or ()) - invariants().keys())
    if unknown:
        raise Problem(
            "invalid-request",
            "no invariant has that name",
            expected="names as the answer has them",
            got=masked(unknown[0])[:60],
        )
    results = await here.audits.check(asker, invariant)
    return CheckAnswer(
        ok=all(result.count == 0 and not result.late for result in results),
        every_tenant=False,
        results=[
            InvariantAnswer(
                **asdict(result) | {"skipped": _why(result)}, holds=result.holds, late=result.late
            )
            for result in results
        ],
    )


def _why(result: CheckResult) -> str | None:
    return result.skipped if result.late else result.skipped and SKIPPED


@routes.get(
    "/v1/replay",
    response_model=ReplayAnswer,
    name="replay",
    summary="A stretch of the ledger, folded and compared with where its batches stand",
    **demands("operate", "check-under-way"),
)
async def replay_stretch(
    asker: Asker,
    here: Here,
    behind: Annotated[
        int, Query(ge=0, le=2**53, description="Begin behind this batch: `next` of the answer.")
    ] = 0,
    limit: Annotated[int, Query(ge=0, le=VIOLATIONS_MAX, description="Violations to tell.")] = 100,
) -> ReplayAnswer:
    """In a snapshot, for a few seconds; pass `next` as `behind` until there is none.

    Each batch is compared by itself, so the stretches together are the whole ledger of the tenant.
    """
    replayed = await here.audits.replay(asker, behind=behind, limit=limit)
    return ReplayAnswer(
        events=replayed.events,
        batches=replayed.batches,
        retired=replayed.retired,
        violated=replayed.violated,
        violations=[
            ViolationAnswer(**document(violation, entries=False))
            for violation in replayed.violations
        ],
        next=replayed.stopped_at,
    )
