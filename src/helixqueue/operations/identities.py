"""Lists refused identities and twins, as steps without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helixqueue.identity.canonical import Identity
from helixqueue.identity.twins import TwinGroup, find_twins

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations
    from helixqueue.operations.steps import Steps
    from helixqueue.queues import Queue
    from helixqueue.records.identity import IdentityPage, RefusedIdentityRow, RefusedPage

PAGE_ROWS = 500


def refused(
    operations: Operations, queue: Queue[Any, Any] | str, limit: int
) -> Steps[list[RefusedIdentityRow]]:
    """The latest refused identities of a queue."""
    known = yield from operations.known(queue)
    rows: list[RefusedIdentityRow] = []
    after: str | None = None
    while len(rows) < limit:
        page: RefusedPage = yield from operations.ask(
            operations.reads.refused(
                tenant=operations.tenant,
                queue=known.row.name,
                after=after,
                limit=min(limit - len(rows), PAGE_ROWS),
            )
        )
        rows += page.rows
        after = page.next
        if after is None:
            break
    return rows


def twins(operations: Operations, queue: Queue[Any, Any] | str) -> Steps[list[TwinGroup]]:
    """List identities of a queue that are easily confused."""
    known = yield from operations.known(queue)
    found: list[Identity] = []
    after: str | None = None
    while True:
        page: IdentityPage = yield from operations.ask(
            operations.reads.identities(
                tenant=operations.tenant, queue=known.row.name, after=after, limit=PAGE_ROWS
            )
        )
        found += [Identity(row.raw or row.identity, row.identity, "") for row in page.rows]
        after = page.next
        if after is None:
            return find_twins(found)
