"""Finds the batch that a user names by id, short id, key or identity."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Final

from helixqueue.cli import unicode_diff
from helixqueue.errors import InvalidIdentity, NoSuchBatch, Refused
from helixqueue.identity import (
    canonical_revision,
    canonicalize,
    derive_key,
    escaped,
    key_range,
    public_id,
    stored_public_id,
)
from helixqueue.operations.batch_reads import list_batches, show_batch
from helixqueue.operations.queues import list_queues
from helixqueue.records.overview import PARTS_SHOWN
from helixqueue.records.parameter import MAX_PAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instructions
    from helixqueue.records.batch import BatchDetail, BatchRow

_MATCHES_MAX: Final = 20
# A short id has no index: this many of the newest batches are searched for it.
SHORT_ID_ROWS: Final = 10_000
_REVISION: Final = re.compile(r"(.+) \(revision (.+)\)")
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
        of_key = yield from _rows_of_short_id(operations, str(first)[:8], queue)
        return _single([row for row in of_key if first <= row.batch_id <= last], ref, queue)
    try:
        return uuid.UUID(ref)
    except ValueError:
        pass
    is_short_id = revision is None and _SHORT_ID.fullmatch(ref) is not None
    rows: Sequence[BatchRow | BatchDetail]
    try:
        rows = yield from _rows_of_identity(operations, ref, queue, revision)
    except Refused:
        if not is_short_id:
            raise
        rows = []
    if not rows and is_short_id:
        rows = yield from _rows_of_short_id(operations, ref.lower(), queue)
    return _single(rows or (yield from _retired(operations, ref, queue, revision)), ref, queue)


def _spellings(
    ref: str, revision: str | None
) -> Iterator[tuple[str | tuple[str, ...], str | None]]:
    """What `ref` may mean: an identity, its parts, and the revision that is printed behind it."""
    yield ref, revision
    if revision is None and (printed := _REVISION.fullmatch(ref)):
        ref, revision = printed.groups()
        yield ref, revision
    # Tables show parts with spaces around the slash, programs get them without.
    separator = PARTS_SHOWN if PARTS_SHOWN in ref else "/"
    if separator in ref:
        yield tuple(ref.split(separator)), revision


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
        raise NoSuchBatch(
            f"expected a key (v1: and 8 to 64 hex digits), got '{escaped(ref)}'"
        ) from None
    return stored_public_id(first), stored_public_id(last)


def _rows_of_identity(
    operations: Operations, ref: str, queue: str | None, revision: str | None
) -> Instructions[list[BatchRow]]:
    found: list[BatchRow] = []
    for identity, wanted in _spellings(ref, revision):
        page = yield from list_batches(
            operations, identity=identity, queue=queue, limit=_MATCHES_MAX
        )
        found = [
            row for row in page.rows if wanted is None or row.revision == canonical_revision(wanted)
        ]
        if found:
            break
    return found


def _retired(
    operations: Operations, ref: str, queue: str | None, revision: str | None
) -> Instructions[list[BatchDetail]]:
    """Retired batches of an identity: only their keys remain, which the identity gives again."""
    page = yield from list_queues(operations, count_to=0, limit=MAX_PAGE)
    found: list[BatchDetail] = []
    for row in page.rows:
        if queue is not None and row.name != queue:
            continue
        for identity, wanted in _spellings(ref, revision):
            try:
                canonical = canonicalize(identity, row.profile)
                key = derive_key(row.tenant, row.name, canonical, canonical_revision(wanted))
                found.append((yield from show_batch(operations, public_id(key))))
            except (InvalidIdentity, NoSuchBatch):
                continue
    return found[:_MATCHES_MAX]


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


def _single(rows: Sequence[BatchRow | BatchDetail], ref: str, queue: str | None) -> uuid.UUID:
    if len(rows) == 1:
        return rows[0].batch_id
    if not rows:
        where = f" in queue {queue}" if queue else ""
        raise NoSuchBatch(
            f"expected the id, key or identity of a batch, got '{escaped(ref)}': no batch matches"
            f"{where} among those this login may see"
        )
    matches = "; ".join(
        f"{row.batch_id} (tenant {row.tenant}, queue {row.queue or '(retired)'}, "
        f"{unicode_diff.identity_text(row.raw, row.revision or '')}, {row.state})"
        for row in rows
    )
    raise NoSuchBatch(
        f"'{escaped(ref)}' matches {len(rows)} batches; use the full id of one: {matches}"
    )
