"""Coalesces single submissions: those that arrive during a commit share the next one.

A commit waits for the disk, and a call costs the database about the same for one row as for twenty.
So the submissions of a token to one queue run one call at a time, and the rows that arrive
meanwhile form the next call. The first submission does not wait for others. Each is durable before
its response, and has its own result. A call that is refused as a whole is repeated row by row, so
that one invalid row does not affect the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from helixqueue.engine import calls
from helixqueue.engine.call_set import POSTGRES_CALLS
from helixqueue.errors import Refused
from helixqueue.postgres.tenant_sessions import InvalidToken

if TYPE_CHECKING:
    from helixqueue.operations.instructions import AnyCall
    from helixqueue.postgres.call import Call
    from helixqueue.records.submission import SubmissionRow, SubmittedRow

MAX_ROWS: Final = 200
MAX_CHARS: Final = 2 * 1024 * 1024  # of their payloads


@dataclass(frozen=True, slots=True)
class SingleSubmit:
    """A call that submits one row and may be merged with others."""

    tenant: str
    queue: str
    profile: str
    row: SubmissionRow
    actor: str | None

    def read(self, row: Any) -> list[SubmittedRow]:  # noqa: ANN401 - as the protocol has it
        return [row]

    def alone(self) -> Call[list[SubmittedRow]]:
        """The call for this row only."""
        return calls.submit(
            tenant=self.tenant,
            queue=self.queue,
            profile=self.profile,
            rows=[self.row],
            actor=self.actor,
        )


class _CoalescingCalls:
    """The engine's calls, except that a submit of one row may be merged with others."""

    note_refused = staticmethod(calls.note_refused)
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
        # A row without identity must not be repeated, so it is never merged.
        if len(rows) == 1 and rows[0].identity is not None:
            return SingleSubmit(tenant, queue, profile, rows[0], actor)
        return calls.submit(tenant=tenant, queue=queue, profile=profile, rows=rows, actor=actor)


COALESCING_CALLS: Final = replace(POSTGRES_CALLS, calls=_CoalescingCalls())


@dataclass(frozen=True, slots=True)
class _Entry:
    """A submission and its result; its client may be gone when the result arrives."""

    call: SingleSubmit
    result: asyncio.Future[SubmittedRow]

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            # A copy for each: a handler may add to an error.
            copy = type(error).__new__(type(error), *error.args)
            copy.__dict__.update(vars(error))
            self.result.set_exception(copy)


@dataclass
class _QueueSender:
    """The waiting submissions of one queue, and the task that sends them."""

    waiting: deque[_Entry] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class SubmitCoalescer:
    """Coalesces the submissions of one token."""

    def __init__(
        self, run: Callable[[Call[list[SubmittedRow]]], Awaitable[list[SubmittedRow]]]
    ) -> None:
        self._run = run
        self._senders: dict[tuple[str, str], _QueueSender] = {}

    async def submit(self, call: SingleSubmit) -> list[SubmittedRow]:
        key = (call.queue, call.profile)
        sender = self._senders.setdefault(key, _QueueSender())
        entry = _Entry(call, asyncio.get_running_loop().create_future())
        sender.waiting.append(entry)
        if sender.task is None:
            sender.task = asyncio.create_task(self._send_waiting(key, sender))
        return [await entry.result]

    async def _send_waiting(self, key: tuple[str, str], sender: _QueueSender) -> None:
        try:
            while sender.waiting:
                await self._send(_next_entries(sender.waiting))
        finally:
            sender.task = None
            if not sender.waiting:
                self._senders.pop(key, None)

    async def _send(self, entries: list[_Entry]) -> None:
        """Run one call; every entry gets a result or an error."""
        call = entries[0].call
        try:
            results = await self._run(
                calls.submit(
                    tenant=call.tenant,
                    queue=call.queue,
                    profile=call.profile,
                    rows=[entry.call.row for entry in entries],
                    actor=call.actor,
                )
            )
            for entry, row in zip(entries, results, strict=True):
                if not entry.result.done():
                    entry.result.set_result(row)
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            if isinstance(error, Refused) and type(error) is not InvalidToken and len(entries) > 1:
                for entry in entries:
                    await self._send([entry])
                return
            for entry in entries:
                entry.fail(error)


def _next_entries(waiting: deque[_Entry]) -> list[_Entry]:
    """At least one entry, and as many as fit into one call."""
    entries: list[_Entry] = []
    chars = 0
    while waiting and len(entries) < MAX_ROWS and chars < MAX_CHARS:
        entries.append(waiting.popleft())
        chars += len(entries[-1].call.row.payload)
    return entries
