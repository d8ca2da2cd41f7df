"""Proof: each invariant with its count and witnesses, run now; the key that signs seals."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from starlette.responses import JSONResponse, Response

from helixqueue.dashboard.page import HEADERS, PageDep, action, go_to, page_router, view
from helixqueue.service.problems import Problem

if TYPE_CHECKING:
    from helixqueue.dashboard.last_checks import LastChecks
    from helixqueue.operate.check import CheckResult

routes = page_router()
PROMISES: Final = {
    "G1": "One batch", "G2": "One owner", "G3": "No silent change", "G4": "Replay",
    "G5": "Nothing lost", "G6": "Nothing stuck", "G7": "No silent mismatch",
    "G8": "Honest doubt", "G9": "Redis is a hint", "G10": "Tenants", "G11": "Outputs",
}  # fmt: skip


@view(routes, "/proof")
async def proof(page: PageDep) -> Response:
    last = page.last_check
    return await page.show(
        "proof.html",
        last=last,
        groups=[] if last is None else by_promise(last.results),
        keys=[key.public() for key in page.service.settings.keys],
        sealed=None if page.service.sealing is None else page.service.sealing.last,
        seal_to=page.service.settings.seal_to,
        seal_seconds=page.service.settings.seal_seconds,
    )


@action(routes, "/proof/check")
async def check(page: PageDep) -> Response:
    checks: LastChecks = page.request.app.state.last_checks
    await checks.run(page.service, page.principal)
    return go_to("/proof")


@action(routes, "/proof/seal")
async def seal(page: PageDep) -> Response:
    """A seal of everything, as a file: the service keeps none that a person asked for."""
    if page.service.signer is None:
        raise Problem("no-key", "the service has no key to sign with; start it with --key")
    await page.principal.require_valid_token()
    document = await page.service.check_jobs.seal(page.service.signer, None, page.principal)
    name = f"seal-{document['to_position']}.json"
    headers = HEADERS | {"Content-Disposition": f'attachment; filename="{name}"'}
    return JSONResponse(document, headers=headers)


def by_promise(results: list[CheckResult]) -> list[tuple[str, str, list[CheckResult]]]:
    """The invariants of each promise, in the order of their numbers."""

    def number(result: CheckResult) -> int:
        digits = "".join(char for char in result.promise.partition(" ")[0] if char.isdigit())
        return int(digits or 0)

    return [
        (f"G{key}", PROMISES.get(f"G{key}", "Others"), list(group))
        for key, group in groupby(sorted(results, key=number), number)
    ]
