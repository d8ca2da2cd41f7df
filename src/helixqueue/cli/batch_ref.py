"""Finds the batch that a user names by id, short id, key or identity."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Final

from helixqueue.cli import unicode_diff
from helixqueue.errors import NoSuchBatch, Refused
from helixqueue.identity import canonical_revision, key_range, stored_public_id
from helixqueue.operations.batch_reads import list_batches
from helixqueue.records.parameter import MAX_PAGE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instructions
    from helixqueue.records.batch import BatchRow

_MATCHES_MAX: Final = 20
# A short id has no index: this many of the newest batches are searched for it.
SHORT_ID_ROWS: Final = 10_000
_SHORT_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f-]{0,27})?", re.IGNORECASE)


def find(
    operations: Operations, ref: str, *, queue: str | None, revision: str | None = None
) -> Instructions[uuid.UUID]:
    """The id of the batch that `ref` names; raises NoSuchBatch for none or several."""
    if ref.startswith("v1:"):
        first, last = _ids_of_key(ref)
        if first == last:
            return first
        # A key begins as the id that is derived from it.
        rows = yield from _rows_of_short_id(operations, str(first)[:8], queue)
        return _single([row for row in rows if first <= row.batch_id <= last], ref, queue)
    try:
        return uuid.UUID(ref)
    except ValueError:
        pass
    is_short_id = revision is None and _SHORT_ID.fullmatch(ref) is not None
    try:
        rows = yield from _rows_of_identity(operations, ref, queue, revision)
    except Refused:
        if not is_short_id:
            raise
        rows = []
    if not rows and is_short_id:
        rows = yield from _rows_of_short_id(operations, ref.lower(), queue)
    return _single(rows, ref, queue)


def find_all(
    operations: Operations, refs: Sequence[str], queue: str | None
) -> Instructions[list[uuid.UUID]]:
    """The ids of several batches; one that is named twice counts once."""
    found: list[uuid.UUID] = []
    for ref in refs:
        found.append((yield from find(operations, ref, queue=queue)))  # noqa: PERF401
    return list(dict.fromkeys(found))


def _ids_of_key(ref: str) -> tuple[uuid.UUID, uuid.UUID]:
    """The first and the last id of batches whose keys begin so."""
    try:
        first, last = key_range(ref)
    except ValueError:
        raise NoSuchBatch(f"expected a key (v1: and 8 to 64 hex digits), got {ref!a}") from None
    return stored_public_id(first), stored_public_id(last)


def _rows_of_identity(
    operations: Operations, ref: str, queue: str | None, revision: str | None
) -> Instructions[list[BatchRow]]:
    page = yield from list_batches(operations, identity=ref, queue=queue, limit=_MATCHES_MAX)
    if revision is None:
        return list(page.rows)
    return [row for row in page.rows if row.revision == canonical_revision(revision)]


def _rows_of_short_id(
    operations: Operations, prefix: str, queue: str | None
) -> Instructions[list[BatchRow]]:
    found: list[BatchRow] = []
    searched, after = 0, None
    while searched < SHORT_ID_ROWS:
        page = yield from list_batches(operations, queue=queue, after=after, limit=MAX_PAGE)
        found += [row for row in page.rows if str(row.batch_id).startswith(prefix)]
        searched += len(page.rows)
        after = page.next
        if after is None:
            break
    return found[:_MATCHES_MAX]


def _single(rows: Sequence[BatchRow], ref: str, queue: str | None) -> uuid.UUID:
    if len(rows) == 1:
        return rows[0].batch_id
    if not rows:
        where = f" in queue {queue}" if queue else ""
        raise NoSuchBatch(
            f"expected the id, key or identity of a batch, got {ref!a}: no batch matches{where} "
            "among those this login may see"
        )
    matches = "; ".join(
        f"{row.batch_id} (tenant {row.tenant}, queue {row.queue}, "
        f"{unicode_diff.identity_text(row.raw, row.revision)}, {row.state})"
        for row in rows
    )
    raise NoSuchBatch(f"{ref!a} matches {len(rows)} batches; use the full id of one: {matches}")
