"""One line of JSON for each request: what was asked, by whom, about what, and what was decided.

Only the fields named here are written, never a body, a header or a query. What looks like a token
of ours is masked even so: somebody may have sent it as the name of a worker.
"""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime
from typing import Any, Final

from helixqueue.store.tokens import TOKEN

log = logging.getLogger("helixqueue.service.request")

FIELDS: Final = (
    "tenant", "token", "queue", "batch", "attempt", "worker", "conflicting_worker", "decision",
    "count", "reason", "problem", "fault",
)  # fmt: skip
MAX_CHARS: Final = 300
SCOPE_KEY: Final = "helixqueue.journal"


class Journal:
    """What is known of one request so far."""

    def __init__(self, request_id: str, method: str) -> None:
        self.request_id = request_id
        self.method = method
        self.route = "(none)"
        # Work without identity: a repeat could not be told from other work.
        self.unrepeatable = False
        self._began = time.monotonic()
        self._facts: dict[str, Any] = {}

    def know(self, **facts: Any) -> None:  # noqa: ANN401 - whatever is known
        unknown = facts.keys() - set(FIELDS)
        if unknown:
            raise TypeError(f"unknown field {min(unknown)!r}; known: {', '.join(FIELDS)}")
        self._facts |= {name: value for name, value in facts.items() if value is not None}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def write(self, status: int) -> None:
        line: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request": self.request_id,
            "method": self.method,
            "route": self.route,
            "status": status,
            "ms": round(self.seconds * 1000, 2),
            **{name: _plain(self._facts[name]) for name in FIELDS if name in self._facts},
        }
        level = logging.WARNING if status >= 500 else logging.INFO
        log.log(level, "%s", masked(json.dumps(line, ensure_ascii=False)))


def masked(text: str) -> str:
    return TOKEN.sub("hx_(masked)", text)


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in list(value)[:20]]
    return value if isinstance(value, int | float | bool) else str(value)[:MAX_CHARS]
