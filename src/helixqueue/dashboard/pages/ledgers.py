"""Ledgers: the user ledgers, and the history of one entity as a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Query
from markupsafe import Markup
from starlette.responses import Response

from helixqueue.dashboard.axis import Axis
from helixqueue.dashboard.page import PAGE_ROWS, After, PageDep, page_router, view
from helixqueue.operations import ledgers as operations
from helixqueue.service.routing import QueueName as LedgerName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.records.ledger import LedgerEvent, LedgerRow

routes = page_router()
SEPARATOR = " / "


@view(routes, "/ledgers")
async def ledgers(page: PageDep, after: After = None) -> Response:
    found = await page.ask(operations.list_ledgers, after=after)
    return await page.show("ledgers.html", found=found)


@view(routes, "/ledgers/{ledger}")
async def ledger(
    page: PageDep,
    ledger: LedgerName,
    entity: Annotated[str | None, Query(max_length=1_024)] = None,
    after: After = None,
) -> Response:
    rules = await page.ask(operations.show_ledger, ledger=ledger)
    if entity is None:
        return await page.show(
            "ledger.html", ledger=rules, entity=None, kinds=kinds_in_order(rules)
        )
    parts = entity.split(SEPARATOR)
    state = await page.ask(operations.show_entity, ledger=ledger, entity=parts)
    events = await page.ask(
        operations.list_events, ledger=ledger, entity=parts, after=after, limit=PAGE_ROWS
    )
    return await page.show(
        "ledger.html",
        ledger=rules,
        entity=entity,
        state=state,
        events=events,
        picture=draw_history(events.rows),
        page_rows=PAGE_ROWS,
    )


def kinds_in_order(rules: LedgerRow) -> list[tuple[str, Sequence[str]]]:
    """Each kind with those that may follow it, in the order in which entities reach them."""
    kinds = list(rules.initial)
    for kind in kinds:  # grows while it is read
        kinds += [after for after in rules.arrows.get(kind, ()) if after not in kinds]
    kinds += [kind for kind in rules.arrows if kind not in kinds]
    return [(kind, rules.arrows.get(kind, ())) for kind in kinds]


def draw_history(events: Sequence[LedgerEvent]) -> Markup:
    """The events on a time axis: a dot each, red where a rule was violated."""
    if not events:
        return Markup("")
    start, end = events[0].at, max(event.at for event in events)
    if start == end:
        return Markup("")
    axis = Axis(start, end, 1)
    dots = Markup("").join(
        Markup(
            '<circle class="{}" cx="{:.2f}%" cy="14" r="5"><title>{} {}</title></circle>'
        ).format(
            "late" if event.violations else "dot",
            min(max(axis.at(event.at), 1), 99),
            event.kind,
            event.seq,
        )
        for event in events
    )
    words = ", then ".join(event.kind for event in events[:20])
    line = Markup('<line class="grid" x1="1%" x2="99%" y1="14" y2="14"/>')
    return Markup('<svg class="lane mini" role="img" aria-label="{}">{}{}</svg>').format(
        words, line, dots
    )
