"""Identities as the engine keeps them: refused ones, and those of batches."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from helixqueue.records.batch import IdentityParts


@dataclass(frozen=True, slots=True)
class RefusedIdentityRow:
    """A submission whose identity violates the profile of its queue.

    Equal ones of one minute are one row: `at` is the first, `last_at` the last of `times`.
    """

    tenant: str
    at: datetime
    actor: str
    raw_hex: str  # its bytes, at most 4096
    why: str
    times: int
    last_at: datetime


@dataclass(frozen=True, slots=True)
class StoredIdentity:
    """The identity of a batch; `raw` is empty where it came in its canonical form."""

    batch_id: UUID
    identity: IdentityParts
    raw: IdentityParts
