"""The low-water mark of each lane, kept by the client so that a claim never looks behind it.

While an old snapshot is held anywhere, the rows that claims took stay in the index as dead entries,
and every claim that starts at the lane's beginning would step over all of them. A claim that starts
behind the last row this client was given does not. Rows that committed late may lie behind the
mark: hence a sweep without hints once a second, and whenever a hinted claim came back short.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

SWEEP_EVERY_SECONDS = 1.0


class Hint(NamedTuple):
    """How far a claim has looked through a lane."""

    lane: int
    turn: int
    batch: int


class Hints:
    def __init__(self) -> None:
        self._marks: dict[int, Hint] = {}
        self._swept_at = float("-inf")

    def now(self, clock: float) -> tuple[Hint, ...]:
        """The hints for a claim at monotonic time `clock`; none when a sweep is due."""
        if clock - self._swept_at >= SWEEP_EVERY_SECONDS:
            self._marks.clear()
            self._swept_at = clock
        return tuple(self._marks.values())

    def learn(self, hints: Iterable[Hint], *, short: bool) -> None:
        """Note how far a claim looked; `short` says that it gave less than it was asked for."""
        if short:
            self._swept_at = float("-inf")
            return
        for hint in hints:
            mark = self._marks.get(hint.lane)
            if mark is None or hint > mark:
                self._marks[hint.lane] = hint
