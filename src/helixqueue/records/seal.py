"""Seals that a service keeps, and the head of a series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class SealRow:
    """A seal that a service made; the document is the signed file."""

    number: int
    at: datetime
    actor: str
    digest: str
    to_position: str  # in digits: JSON numbers are too small
    document: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class SealHead:
    """Where the next seal continues."""

    number: int
    id: str
    to_position: str  # in digits: JSON numbers are too small
    counts: dict[str, int]
