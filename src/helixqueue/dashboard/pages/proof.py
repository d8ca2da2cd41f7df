"""Proof: each invariant with its count and witnesses, when it was checked and by whom; seals."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Query
from starlette.responses import JSONResponse, Response

from helixqueue.dashboard.page import HEADERS, PageDep, action, go_to, page_router, view
from helixqueue.operate.check import CheckResult, invariants
from helixqueue.operations.checks import list_checks
from helixqueue.operations.seals import list_seals
from helixqueue.service.problems import Problem

if TYPE_CHECKING:
    from helixqueue.records.check import CheckRun

routes = page_router()
WAITING: Final = {"pending_stalled", "lease_not_reaped", "lease_stuck"}
RUNS: Final = 8
PROMISES: Final = {
    "G1": "One batch", "G2": "One owner", "G3": "No silent change", "G4": "Replay",
    "G5": "Nothing lost", "G6": "Nothing stuck", "G7": "No silent mismatch",
    "G8": "Honest doubt", "G9": "Redis is a hint", "G10": "Tenants", "G11": "Outputs",
}  # fmt: skip


@view(routes, "/proof")
async def proof(
    page: PageDep, run: Annotated[int | None, Query(ge=1, lt=2**63)] = None
) -> Response:
    """The last recorded run, or another one of the last ones."""
    runs = (await page.ask(list_checks, limit=RUNS)).rows
    shown = next((row for row in runs if run in {None, row.number}), None)
    results = [] if shown is None else described(shown)
    return await page.show(
        "proof.html",
        runs=runs,
        shown=shown,
        results=results,
        found=[result for result in results if result.count],
        contradicting=contradicting(results),
        groups=by_promise(results),
        keys=[key.public() for key in page.service.settings.keys],
        sealed=None if page.service.sealing is None else page.service.sealing.last,
        seals=(await page.ask(list_seals, limit=10)).rows if page.may("seal") else (),
        seal_to=page.service.settings.seal_to,
        seal_seconds=page.service.settings.seal_seconds,
    )


@action(routes, "/proof/check")
async def check(page: PageDep) -> Response:
    await page.service.check_jobs.check(page.principal, None)
    return go_to("/proof")


@action(routes, "/proof/seal", "seal")
async def seal(page: PageDep) -> Response:
    """The next seal, as a file."""
    if page.service.signer is None:
        raise Problem("no-key", "the service has no key to sign with; start it with --key")
    await page.principal.require_valid_token()
    document = await page.service.check_jobs.seal(page.principal)
    name = f"seal-{document['to_position']}.json"
    headers = HEADERS | {"Content-Disposition": f'attachment; filename="{name}"'}
    return JSONResponse(document, headers=headers)


def described(run: CheckRun) -> list[CheckResult]:
    """What a run found, with what this release knows of each invariant."""
    known = invariants()
    found: list[CheckResult] = []
    for row in run.results:
        notes = known[row.name].notes if row.name in known else {}
        promise, means, action = (notes.get(name, "") for name in ("promise", "means", "action"))
        witnesses = list(row.witnesses)
        found.append(
            CheckResult(row.name, promise, row.count, means, action, witnesses, row.skipped)
        )
    return found


def contradicting(results: list[CheckResult]) -> list[CheckResult]:
    """Those that found more than waiting: what waits too long takes effect later, and once."""
    return [result for result in results if result.count and result.name not in WAITING]


def by_promise(results: list[CheckResult]) -> list[tuple[str, str, list[CheckResult]]]:
    """The invariants of each promise, in the order of their numbers."""

    def number(result: CheckResult) -> int:
        digits = "".join(char for char in result.promise.partition(" ")[0] if char.isdigit())
        return int(digits or 0)

    return [
        (f"G{key}", PROMISES.get(f"G{key}", "Others"), list(group))
        for key, group in groupby(sorted(results, key=number), number)
    ]
