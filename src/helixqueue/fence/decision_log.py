"""Counts and logs the decision about one fenced call, of a function or of an HTTP request.

The decision is `new` (executed and sealed), `duplicate` (the effect happened before), `conflict`
(the key belongs to another request), or why there is no outcome: `in-progress`, `in-doubt`,
`released`, `doubted`, `fenced-out` and, before the fence, the problem type of the HTTP response.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from helixqueue.errors import (
    Conflict,
    HelixError,
    InDoubt,
    InProgress,
    LeaseLost,
    NotPermitted,
    Refused,
)
from helixqueue.log.lines import event

if TYPE_CHECKING:
    from helixqueue.fence.metrics import Counters

DEFAULT_FIELDS: Final = ("key", "decision", "effect_id", "source_type", "source_id")
_WORDS: Final[tuple[tuple[type[HelixError], str], ...]] = (
    (Conflict, "conflict"),
    (InProgress, "in-progress"),
    (InDoubt, "in-doubt"),
    (LeaseLost, "fenced-out"),
    (NotPermitted, "scope-unavailable"),
    (Refused, "refused"),
)


def decision_of(error: HelixError) -> str:
    """The decision that an error stands for."""
    words = (word for kind, word in _WORDS if isinstance(error, kind))
    return next(words, "storage-unavailable")


class DecisionLog:
    """The record of one call, counted in `series`; `fields` are the only ones that are logged."""

    def __init__(
        self,
        counters: Counters,
        log: logging.Logger,
        surface: str,
        name: str,
        fields: tuple[str, ...] = DEFAULT_FIELDS,
        *,
        series: str | None = None,
    ) -> None:
        self._counters = counters
        self._log = log
        self._surface = surface
        self._name = name
        self._series = series or name
        self._fields = fields
        self._started = time.monotonic()
        self._values: dict[str, object] = {"route": self._series}

    def add(self, **values: object) -> None:
        self._values |= values

    def claimed(self, attempt: int | None, waited: float, *, executes: bool) -> None:
        self.add(attempt=attempt)
        if waited:
            self._counters.observe(self._surface, self._series, "waited", waited)
        if executes and (attempt or 1) > 1:
            self._counters.count_retaken(self._surface, self._series)

    def record(self, decision: str, **values: object) -> None:
        seconds = time.monotonic() - self._started
        self._counters.count_decision(self._surface, self._series, decision)
        if decision == "new":
            self._counters.observe(self._surface, self._series, "sealed", seconds)
        if self._log.isEnabledFor(logging.INFO):
            self._values |= {"decision": decision, "seconds": round(seconds, 6), **values}
            shown: dict[str, Any] = {field: self._values.get(field) for field in self._fields}
            event(self._log, logging.INFO, "fence", fence=self._name, **shown)

    def record_error(self, error: HelixError, **values: object) -> None:
        if isinstance(error, Conflict):
            values |= {"diff_ops": len(error.diff), "effect_id": error.effect}
        self.record(decision_of(error), **values)

    def count(self, word: str) -> None:
        """Count a property of the call beside its decision."""
        self._counters.count_decision(self._surface, self._series, word)
