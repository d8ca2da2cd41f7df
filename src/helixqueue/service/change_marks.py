"""Marks map transaction ids to times, shared by the change streams of a process.

A reader that reconnects must learn whether retention removed events that it has not read. Its
position is a transaction id, and the index of retired batches contains only times. A mark connects
the two. Each mark uses up a transaction id, so marks are set only every few seconds.
"""

from __future__ import annotations

import time
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from helixqueue.engine import changes

if TYPE_CHECKING:
    from helixqueue.engine.changes import ChangeMark
    from helixqueue.postgres.tenant_sessions import TenantSessions

EVERY_SECONDS: Final = 2.0
# The oldest marks are dropped first: a slow reader then reads more than necessary, never less.
MARKS_MAX: Final = 1_000
NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ChangeMarks:
    def __init__(self, sessions: TenantSessions, every_seconds: float = EVERY_SECONDS) -> None:
        self._sessions = sessions
        self._every_seconds = every_seconds
        self._marked_at = float("-inf")
        self._marks: deque[ChangeMark] = deque(maxlen=MARKS_MAX)

    async def before(self, position: int) -> datetime:
        """A time that precedes every event of transaction `position` and later ones."""
        if time.monotonic() - self._marked_at >= self._every_seconds:
            self._marked_at = time.monotonic()
            self._marks.append(await self._sessions.run_without_tenant(changes.take_mark()))
        return max((mark.at for mark in self._marks if mark.position < position), default=NEVER)
