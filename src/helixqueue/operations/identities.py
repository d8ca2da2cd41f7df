"""Refused identities, and the identities of a queue, in which twins are searched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helixqueue.identity.canonical import Identity
from helixqueue.identity.twins import TwinGroup, find_twins
from helixqueue.operations import engine
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.operation import operation
from helixqueue.records.identity import RefusedIdentityRow, StoredIdentity
from helixqueue.records.page import Page
from helixqueue.records.parameter import MAX_PAGE, Cursor, Limit, QueueName

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations
    from helixqueue.queues import Queue


@operation("GET /v1/queues/{queue}/refused", scope="read")
def list_refused(
    operations: Operations, queue: QueueName, *, after: Cursor | None = None, limit: Limit = 50
) -> Instructions[Page[RefusedIdentityRow]]:
    """List refused identities, newest first.

    With the reason and the raw bytes in hex, so that a lab can find the tube or the row of a sheet.
    """
    return operations.ask(
        engine.identities.refused(
            tenant=operations.tenant or None, queue=queue, after=after, limit=limit
        )
    )


@operation("GET /v1/queues/{queue}/identities", scope="read")
def list_identities(
    operations: Operations, queue: QueueName, *, after: Cursor | None = None, limit: Limit = 50
) -> Instructions[Page[StoredIdentity]]:
    """List the identities of a queue in the order of their arrival.

    `helixq identity twins` reads all pages and groups identities that look alike. Batches without
    an identity are left out, so a page may be short and still have a `next`.
    """
    return operations.ask(
        engine.identities.identities(
            tenant=operations.tenant, queue=queue, after=after, limit=limit
        )
    )


def refused(
    operations: Operations, queue: Queue[Any, Any] | str, limit: int
) -> Instructions[list[RefusedIdentityRow]]:
    """The latest refused identities of a queue."""
    known = yield from operations.known(queue)
    rows: list[RefusedIdentityRow] = []
    after: str | None = None
    while len(rows) < limit:
        page = yield from list_refused(
            operations, known.row.name, after=after, limit=min(limit - len(rows), MAX_PAGE)
        )
        rows += page.rows
        after = page.next
        if after is None:
            break
    return rows


def twins(operations: Operations, queue: Queue[Any, Any] | str) -> Instructions[list[TwinGroup]]:
    """List identities of a queue that are easily confused."""
    known = yield from operations.known(queue)
    stored = yield from stored_identities(operations, known.row.name)
    return find_twins(stored)


def stored_identities(operations: Operations, queue: str) -> Instructions[list[Identity]]:
    """Every identity of a queue."""
    found: list[Identity] = []
    after: str | None = None
    while True:
        page = yield from list_identities(operations, queue, after=after, limit=MAX_PAGE)
        found += [Identity(row.raw or row.identity, row.identity, "") for row in page.rows]
        after = page.next
        if after is None:
            return found
