"""One statement with its arguments and the function that reads its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    sql: str
    args: Sequence[Any] | Mapping[str, Any]  # by position, or by name (reads)
    read: Callable[[list[Row]], T]
    is_chunk: bool = False  # locks many rows: clients run it in a transaction with limits
