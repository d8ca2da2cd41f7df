"""API tokens as they are listed, without their secret."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token as people see it."""

    tenant: str
    name: str
    generation: int
    scopes: list[str]
    queues: list[str] | None
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None
    revoked_by: str | None
    reason: str | None
    last_used_at: datetime | None
    good: bool
