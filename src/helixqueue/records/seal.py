"""The head of a series of seals."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SealHead:
    """Where the next seal continues."""

    number: int
    id: str
    to_xid: int
    epoch: int
    counts: dict[str, int]
