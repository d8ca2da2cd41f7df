"""Runs of `check` on the rows of a tenant, as the service records them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """What one invariant found."""

    name: str
    count: int
    witnesses: tuple[dict[str, Any], ...]
    skipped: str | None  # why it did not run


@dataclass(frozen=True, slots=True)
class CheckRun:
    """A run: when, how long, by whom, and what every invariant found."""

    number: int
    at: datetime
    seconds: float
    actor: str
    results: tuple[CheckOutcome, ...]
