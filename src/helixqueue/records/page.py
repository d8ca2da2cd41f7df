"""A page of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows of a list. A page may be short or empty and still have a `next`."""

    rows: tuple[T, ...]
    next: str | None  # cursor of the next page; None: last page
