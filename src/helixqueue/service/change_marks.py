"""Marks that the streams of a process share: how old an event behind a transaction can be at most.

A reader that comes back asks whether retention took away what it has not read. Its place is a
transaction, and the index of retired batches knows only times. A mark ties the two together. It
takes a transaction's number, so it is set now and then.
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
# Of so many the oldest go first: a reader that is held up then reads more than it must, not less.
KEPT: Final = 1_000
NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ChangeMarks:
    def __init__(self, served: TenantSessions, every_seconds: float = EVERY_SECONDS) -> None:
        self._served = served
        self._every_seconds = every_seconds
        self._set_at = float("-inf")
        self._marks: deque[ChangeMark] = deque(maxlen=KEPT)

    async def before(self, xid: int) -> datetime:
        """A time that no event of transaction `xid` or a later one is older than."""
        if time.monotonic() - self._set_at >= self._every_seconds:
            self._set_at = time.monotonic()
            self._marks.append(await self._served.run_without_tenant(changes.take_mark()))
        return max((mark.at for mark in self._marks if mark.xid < xid), default=NEVER)
