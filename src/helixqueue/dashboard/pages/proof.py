"""Proof: each invariant with its count and witnesses, run now; the key that signs seals."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from helixqueue.dashboard.page import PageDep, action, go_to, page_router, view

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
        seal_to=page.service.settings.seal_to,
        seal_seconds=page.service.settings.seal_seconds,
    )


@action(routes, "/proof/check")
async def check(page: PageDep) -> Response:
    checks: LastChecks = page.request.app.state.last_checks
    await checks.run(page.service, page.principal)
    return go_to("/proof")


def by_promise(results: list[CheckResult]) -> list[tuple[str, str, list[CheckResult]]]:
    """The invariants of each promise, in the order of their numbers."""

    def number(result: CheckResult) -> int:
        digits = "".join(char for char in result.promise.partition(" ")[0] if char.isdigit())
        return int(digits or 0)

    return [
        (f"G{key}", PROMISES.get(f"G{key}", "Others"), list(group))
        for key, group in groupby(sorted(results, key=number), number)
    ]
