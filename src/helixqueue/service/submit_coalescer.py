"""Single submissions that come while a commit is under way go together in the next one.

A commit waits for the disk, and a call costs the database the same for one row as for twenty. So a
token's submissions of one queue are sent one call at a time: whatever came meanwhile is the next
call. Nobody waits for company: the first of a quiet moment goes at once, alone. Each is durable
before it is answered, and has its own answer; a call that is refused as a whole is sent again row
by row, so that nobody pays for a neighbour.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from helixqueue.client.postgres_backend import BACKEND as STORE_BOOK
from helixqueue.engine import calls
from helixqueue.errors import Refused
from helixqueue.postgres.tenant_sessions import InvalidToken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from helixqueue.operations.steps import AnyCall
    from helixqueue.postgres.call import Call
    from helixqueue.records.submission import SubmissionRow, SubmittedRow

MAX_ROWS: Final = 200
MAX_CHARS: Final = 2 * 1024 * 1024  # of their payloads


@dataclass(frozen=True, slots=True)
class Single:
    """One row to submit: a call that may travel with others."""

    tenant: str
    queue: str
    profile: str
    row: SubmissionRow
    actor: str | None

    def read(self, answer: Any) -> list[SubmittedRow]:  # noqa: ANN401 - as it comes
        return [answer]

    def together(self, rows: Sequence[SubmissionRow]) -> Call[list[SubmittedRow]]:
        return calls.submit(
            tenant=self.tenant,
            queue=self.queue,
            profile=self.profile,
            rows=rows,
            actor=self.actor,
        )


class _Calls:
    """The engine's calls, but that a single submission is one which may travel with others."""

    note_refused = staticmethod(calls.note_refused)
    queue = staticmethod(calls.queue)
    set_queue = staticmethod(calls.set_queue)
    cancel = staticmethod(calls.cancel)
    retry = staticmethod(calls.retry)
    erase = staticmethod(calls.erase)
    claim = staticmethod(calls.claim)
    start = staticmethod(calls.start)
    renew = staticmethod(calls.renew)
    release = staticmethod(calls.release)
    settle = staticmethod(calls.settle)

    def submit(
        self,
        *,
        tenant: str,
        queue: str,
        profile: str,
        rows: Sequence[SubmissionRow],
        actor: str | None = None,
    ) -> AnyCall[list[SubmittedRow]]:
        # What has no identity must not be repeated, so it goes alone.
        if len(rows) == 1 and rows[0].identity is not None:
            return Single(tenant, queue, profile, rows[0], actor)
        return calls.submit(tenant=tenant, queue=queue, profile=profile, rows=rows, actor=actor)


BOOK: Final = replace(STORE_BOOK, calls=_Calls())


@dataclass(frozen=True, slots=True)
class _Entry:
    one: Single
    answer: asyncio.Future[SubmittedRow]

    # Whoever asked may have left in the meantime.

    def succeed(self, row: SubmittedRow) -> None:
        if not self.answer.done():
            self.answer.set_result(row)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            # One for each: whoever catches an error may add to it.
            twin = type(error).__new__(type(error), *error.args)
            twin.__dict__.update(vars(error))
            self.answer.set_exception(twin)


@dataclass
class _Group:
    """Of one queue: what waits, and whether somebody is sending."""

    waiting: deque[_Entry] = field(default_factory=deque)
    sender: asyncio.Task[None] | None = None


class SubmitCoalescer:
    """Of one token."""

    def __init__(
        self, run: Callable[[Call[list[SubmittedRow]]], Awaitable[list[SubmittedRow]]]
    ) -> None:
        self._run = run
        self._groups: dict[tuple[str, str], _Group] = {}

    async def submit(self, one: Single) -> list[SubmittedRow]:
        place = (one.queue, one.profile)
        group = self._groups.setdefault(place, _Group())
        answer: asyncio.Future[SubmittedRow] = asyncio.get_running_loop().create_future()
        group.waiting.append(_Entry(one, answer))
        if group.sender is None:
            group.sender = asyncio.create_task(self._send(place, group))
        return one.read(await answer)

    async def _send(self, place: tuple[str, str], group: _Group) -> None:
        try:
            while group.waiting:
                await self._send_together(_next(group))
        finally:
            group.sender = None
            if not group.waiting:
                self._groups.pop(place, None)

    async def _send_together(self, entries: list[_Entry]) -> None:
        """Every entry gets an answer, or an error: whoever asked waits for nothing else."""
        try:
            told = await self._run(entries[0].one.together([entry.one.row for entry in entries]))
            for entry, row in zip(entries, told, strict=True):
                entry.succeed(row)
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
            if isinstance(error, Refused) and type(error) is not InvalidToken and len(entries) > 1:
                for entry in entries:
                    await self._send_together([entry])
                return
            for entry in entries:
                entry.fail(error)


def _next(group: _Group) -> list[_Entry]:
    """As many as one call takes; at least one."""
    taken: list[_Entry] = []
    chars = 0
    while group.waiting and len(taken) < MAX_ROWS and chars < MAX_CHARS:
        taken.append(group.waiting.popleft())
        chars += len(taken[-1].one.row.payload)
    return taken
