"""How a person names a batch: by its id, by its key, or by its identity in any spelling."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from helixqueue.cli import unicode_diff
from helixqueue.cli.exits import NoSuchBatch
from helixqueue.identity import canonical_revision, stored_public_id

if TYPE_CHECKING:
    from helixqueue.cli.connection import Reached

_NAMED_MAX = 20


def find(
    there: Reached,
    ref: str,
    *,
    tenant: str | None,
    queue: str | None,
    revision: str | None = None,
) -> uuid.UUID:
    """The id of the one batch that `ref` means."""
    if ref.startswith("v1:"):
        return _of_key(ref)
    try:
        return uuid.UUID(ref)
    except ValueError:
        return _of_identity(there, ref, tenant=tenant, queue=queue, revision=revision)


def _of_key(ref: str) -> uuid.UUID:
    try:
        digest = bytes.fromhex(ref.removeprefix("v1:"))
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise NoSuchBatch(f"expected a key such as v1: and 64 hex digits, got {ref!a}")
    return stored_public_id(b"\x01" + digest)


def _of_identity(
    there: Reached, ref: str, *, tenant: str | None, queue: str | None, revision: str | None
) -> uuid.UUID:
    page = there.run(
        there.reads.batches(identity=ref, tenant=tenant, queue=queue, limit=_NAMED_MAX)
    )
    rows = page.rows
    if revision is not None:
        rows = tuple(row for row in rows if row.revision == canonical_revision(revision))
    if len(rows) == 1:
        found: uuid.UUID = rows[0].batch_id
        return found
    if not rows:
        where = f" in queue {queue}" if queue else ""
        raise NoSuchBatch(
            f"expected the id, the key or the identity of a batch, and none goes by {ref!a}{where} "
            "among those this role may see"
        )
    several = "; ".join(
        f"{row.batch_id} (tenant {row.tenant}, queue {row.queue}, "
        f"{unicode_diff.shown(row.raw, row.revision)}, {row.state})"
        for row in rows
    )
    raise NoSuchBatch(f"{ref!a} stands for {len(rows)} batches; name one by its id: {several}")
