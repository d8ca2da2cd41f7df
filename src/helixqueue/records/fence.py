"""Fences: rows, pages and events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from helixqueue.states import FenceState


@dataclass(frozen=True, slots=True)
class FenceRow:
    """A fence as lists and detail pages show it."""

    key: bytes
    tenant: str
    name: str
    identity: str | None
    state: FenceState
    version: int
    attempt: int
    actor: str
    reason: str
    detail: str | None
    first_at: datetime
    changed_at: datetime
    deadline: datetime
    effect: str | None
    form: str | None
    digest: bytes | None
    answer_kept: bool
    answer_until: datetime | None
    until: datetime | None
    quiet_seconds: float
    fingerprint: bytes
    receipt: bytes | None
    sealed_at: datetime | None
    signature: dict[str, Any] | None = None  # of the service that returned the row


@dataclass(frozen=True, slots=True)
class FencePage:
    rows: tuple[FenceRow, ...]
    next: str | None


class FencePreview(NamedTuple):
    """A call whose decision is previewed; a `request` of None is not compared."""

    name: str
    identity: str  # canonical, as text
    request: str | None  # canonical JSON


@dataclass(frozen=True, slots=True)
class FenceEventRow:
    """One step or decision in the history of a fence."""

    at: datetime
    what: str
    from_state: FenceState | None
    to_state: FenceState | None
    attempt: int | None
    actor: str
    detail: str | None
