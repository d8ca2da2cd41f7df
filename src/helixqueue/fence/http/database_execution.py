"""A keyed request whose effects are all in this database: fence, effect and seal are one commit.

A crash at any point leaves all of it or nothing, so such a request is never in doubt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from helixqueue.fence import protocol
from helixqueue.fence.http.execute import KeyedExecution
from helixqueue.fence.runner_async import AsyncInstructionRunner
from helixqueue.operations.instructions import Sleep, run_instructions_async, short_pause
from helixqueue.postgres.tenant_sessions import TransactionLost

if TYPE_CHECKING:
    from helixqueue.engine.fences import FenceDecision, FenceLease, FenceResult
    from helixqueue.postgres.call import Call

T = TypeVar("T")
# How long a lost transaction is run again from its start. Its repeat is safe at any time.
RETRY_SECONDS: Final = 3.0


class LocalTransaction(Protocol):
    """A transaction that can be begun again after its end."""

    async def begin(self, call: Call[T], /) -> T: ...
    async def commit(self, call: Call[Any] | None = None, /) -> Any: ...  # noqa: ANN401
    async def rollback(self) -> None: ...


class _ClaimRunner(AsyncInstructionRunner):
    """Waits for another holder without a transaction, so that its connection serves others."""

    def __init__(
        self,
        transaction: LocalTransaction,
        read_probe: Callable[[object], protocol.ProbeFinding],
        probe: Callable[[], object] | None,
    ) -> None:
        super().__init__(transaction.begin, read_probe, probe=probe)
        self._transaction = transaction

    async def __call__(self, instruction: protocol.Instruction) -> Any:  # noqa: ANN401 - each has its own reply
        if isinstance(instruction, Sleep):
            await self._transaction.commit()
        return await super().__call__(instruction)


class LocalExecution(KeyedExecution):
    """Claims, calls the application and seals in `transaction`, which the application uses too."""

    def __init__(self, *args: Any, transaction: LocalTransaction) -> None:  # noqa: ANN401
        super().__init__(*args)
        self._transaction = transaction
        self._spec = replace(self._spec, start=False)  # no marker: the effect cannot outlive it
        self._runner = _ClaimRunner(transaction, self._read_probe, self._probe)
        self._last_runner = AsyncInstructionRunner(transaction.commit, self._read_probe)

    async def perform(self) -> None:
        deadline = time.monotonic() + RETRY_SECONDS
        for tries in count(1):
            try:
                await super().perform()
            except TransactionLost as lost:
                pause = short_pause(tries)
                if time.monotonic() + pause > deadline:
                    await self._refuse(lost.error)
                    return
                await asyncio.sleep(pause)
            else:
                return

    async def _end_claim(self) -> None:
        with suppress(TransactionLost):  # the record of a repeat may be lost
            await self._transaction.commit()

    async def _execute(self, lease: FenceLease) -> None:
        try:
            await super()._execute(lease)
        finally:
            await self._transaction.rollback()

    def _renewing(self, lease: FenceLease) -> AbstractContextManager[None]:  # noqa: ARG002
        """Needless: until the commit, no other call can claim this fence."""
        return nullcontext()

    async def _seal(self, lease: FenceLease, result: FenceResult) -> FenceDecision:
        spec = replace(self._spec, alone=False)
        return await run_instructions_async(protocol.seal(spec, lease, result), self._last_runner)

    async def _release(self, lease: FenceLease, detail: str) -> None:
        """Commits too: the application may have recorded why it refused."""
        spec = replace(self._spec, alone=False)
        await run_instructions_async(protocol.release(spec, lease, detail), self._last_runner)

    async def _doubt(self, lease: FenceLease, detail: str) -> None:  # noqa: ARG002
        """No doubt: the effect is undone with its fence."""
        await self._transaction.rollback()
        self._decisions.record("released")
