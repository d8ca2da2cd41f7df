"""The head of a series of seals."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SealHead:
    """Where the next seal continues."""

    number: int
    id: str
    to_position: str  # in digits: JSON numbers are too small
    counts: dict[str, int]
