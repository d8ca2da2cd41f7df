"""Identities as the engine keeps them: refused ones, and those of batches."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID


@dataclass(frozen=True, slots=True)
class RefusedIdentityRow:
    """A submission whose identity violates the profile of its queue."""

    at: datetime
    actor: str
    raw_hex: str  # its bytes, at most 4096
    why: str


class StoredIdentity(NamedTuple):
    """The identity of a batch; `raw` is empty where it came in its canonical form."""

    batch_id: UUID
    identity: tuple[str, ...]
    raw: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RefusedPage:
    rows: tuple[RefusedIdentityRow, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class IdentityPage:
    rows: tuple[StoredIdentity, ...]
    next: str | None
