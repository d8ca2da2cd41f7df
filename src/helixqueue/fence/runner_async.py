"""Performs the instructions of a fenced call in an event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from helixqueue.fence.protocol import CompareRequests, Instruction, RunProbe, Savepoint, Undo
from helixqueue.fence.shield import shielded
from helixqueue.operations.instructions import Execute, Sleep, run_instructions_async
from helixqueue.postgres.caller_transaction import run_within_async, translating

if TYPE_CHECKING:
    from helixqueue.fence.protocol import ProbeFinding
    from helixqueue.postgres.call import Call

T = TypeVar("T")
log = logging.getLogger("helixqueue.fence")
# Longer requests are compared in a thread: up to here it takes at most 30 ms.
MAX_LOOP_CHARS: Final = 32 * 1024


class AsyncRun(Protocol):
    """Runs one call, in a transaction of its own or in the caller's."""

    def __call__(self, call: Call[T], /) -> Awaitable[T]: ...


class AsyncInstructionRunner:
    """Performs the instructions of one call on a client, or on the caller's connection.

    `read_probe` turns what the probe returned, or the exception it raised, into a finding.
    """

    def __init__(
        self,
        run: AsyncRun,
        read_probe: Callable[[object], ProbeFinding],
        within: Any = None,  # noqa: ANN401 - any connection that submit takes
        probe: Callable[[], Any] | None = None,
    ) -> None:
        self._run: AsyncRun = run if within is None else partial(run_within_async, within)
        self._read_probe = read_probe
        self._within = within
        self._probe = probe
        self._savepoint: AbstractAsyncContextManager[Any] | None = None

    async def __call__(self, instruction: Instruction) -> Any:  # noqa: ANN401 - each instruction has its own reply
        if isinstance(instruction, Execute):
            return await self._run(instruction.call)
        if isinstance(instruction, Sleep):
            return await asyncio.sleep(instruction.seconds)
        if isinstance(instruction, RunProbe):
            return self._read_probe(await self._run_probe())
        if isinstance(instruction, CompareRequests):
            if len(instruction.first or "") + len(instruction.received) > MAX_LOOP_CHARS:
                return await asyncio.to_thread(instruction.changes)
            return instruction.changes()
        return await self._perform_savepoint(instruction)

    async def finish(self, instructions: Generator[Instruction, Any, T]) -> T:
        """Run the instructions to their end: a seal must follow its effect."""
        return await shielded(run_instructions_async(instructions, self))

    async def _run_probe(self) -> object:
        try:
            found = None if self._probe is None else self._probe()
            if inspect.isawaitable(found):
                return await found
        except Exception as error:  # noqa: BLE001 - a failed probe has found nothing
            return error
        return found

    async def _perform_savepoint(self, instruction: Savepoint) -> bool:
        if instruction.action == "open":
            with translating():
                self._savepoint = _open_savepoint(self._within)
                await self._savepoint.__aenter__()
            return True
        assert self._savepoint is not None  # noqa: S101 - opened before
        if instruction.action == "keep":
            with translating():
                await self._savepoint.__aexit__(None, None, None)
            return True
        try:
            await self._savepoint.__aexit__(Undo, Undo(), None)
        except Undo:
            return True
        except Exception as error:  # noqa: BLE001 - any driver's error of a dead connection
            log.info("fence: the caller's transaction is not usable any more: %s", error)
            return False
        return True


def _open_savepoint(within: Any) -> Any:  # noqa: ANN401 - of any driver
    """`begin_nested` of SQLAlchemy, `transaction` of psycopg and asyncpg."""
    nested = getattr(within, "begin_nested", None) or within.transaction
    return nested()
