"""Identities: spellings that a person would confuse, and refused ones byte by byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Query
from starlette.responses import Response

from helixqueue.dashboard.code_points import Cell, cells
from helixqueue.dashboard.page import After, PageDep, page_router, view
from helixqueue.errors import NotInstalled
from helixqueue.identity.canonical import Identity
from helixqueue.identity.twins import find_twins
from helixqueue.operations import identities as operations
from helixqueue.operations import queues
from helixqueue.records.parameter import NAME_PATTERN

if TYPE_CHECKING:
    from helixqueue.dashboard.page import PageRequest
    from helixqueue.identity.twins import TwinGroup

routes = page_router()
# Twins are searched among so many identities of a queue; the command line searches all.
SEARCHED: Final = 500
GROUPS: Final = 30


@view(routes, "/identities", live=False)
async def identities(
    page: PageDep,
    queue: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    after: After = None,
) -> Response:
    rows = (await page.ask(queues.list_queues, count_to=0, limit=200)).rows
    names = [row.name for row in rows]
    queue = queue or (names[0] if names else None)
    if queue is None:
        return await page.show("identities.html", queue=None)
    refused = await page.ask(operations.list_refused, queue=queue, limit=25)
    groups, searched, next_page = await _twins(page, queue, after)
    shown = [(group, _spellings(group)) for group in groups[:GROUPS]]
    return await page.show(
        "identities.html",
        queue=queue,
        names=names,
        refused=refused.rows,
        groups=shown,
        searched=searched,
        next=next_page,
    )


async def _twins(
    page: PageRequest, queue: str, after: str | None
) -> tuple[list[TwinGroup], int, str | None]:
    """The twins among some identities of a queue, and how many those are."""
    found = await page.ask(operations.list_identities, queue=queue, after=after, limit=SEARCHED)
    stored = [Identity(row.raw or row.identity, row.identity, "") for row in found.rows]
    try:
        return find_twins(stored), len(stored), found.next
    except NotInstalled:
        return [], 0, found.next


def _spellings(group: TwinGroup) -> list[tuple[str, list[Cell]]]:
    """Each member, and its characters where it differs from the first."""
    texts = [
        " / ".join(member.raw if group.kind == "spelling" else member.canonical)
        for member in group.members
    ]
    first = texts[0]
    marked = [cells(texts[1], first)[1], *(cells(text, first)[0] for text in texts[1:])]
    return list(zip(texts, marked, strict=True))
