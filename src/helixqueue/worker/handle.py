"""What a lease needs of the worker that holds it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from helixqueue.transport.protocol import (
        AsyncHandlerTransactions,
        HandlerTransactions,
        Transport,
    )
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.heartbeat import Heartbeat
    from helixqueue.worker.output_files import OutputFiles


class WorkerHandle(Protocol):
    worker: str

    @property
    def transactions(self) -> HandlerTransactions | None:
        """Transactions for `def` handlers; None for a worker without a database connection."""

    @property
    def async_transactions(self) -> AsyncHandlerTransactions | None: ...

    def submit(self, *args: Any, **options: Any) -> Any: ...

    async def submit_async(self, *args: Any, **options: Any) -> Any: ...

    def set_process_group(self, attempt: Attempt, group: int | None) -> None:
        """Name the process group that runs the attempt, or None when it has ended."""

    def pause_renewal(self, attempt: Attempt, *, always: bool = False) -> None:
        """Return when no renewal of the lease is in flight: it is about to be settled.

        For threads. A lease that is too young to be renewed is skipped unless `always`, which
        pauses renewal until the handler ends, for however long.
        """

    async def pause_renewal_async(self, attempt: Attempt, *, always: bool = False) -> None: ...

    def resume_renewal(self, attempt: Attempt) -> None:
        """The lease was not settled after all."""

    def stop_renewal(self, attempt: Attempt) -> None:
        """The settlement has committed. The handler may continue."""

    def stage_outputs(self, attempt: Attempt) -> None:
        """Stage and register the output files, before a transaction completes the batch."""

    async def stage_outputs_async(self, attempt: Attempt) -> None: ...


class InProcessHandle:
    """For handlers in the worker's own process."""

    def __init__(
        self,
        transport: Transport,
        heartbeat: Heartbeat,
        submit: Callable[..., Any],
        submit_async: Callable[..., Any],
        outputs: OutputFiles,
    ) -> None:
        self.worker = transport.worker
        self.transactions = transport.transactions
        self.async_transactions = transport.async_transactions
        self.submit, self.submit_async = submit, submit_async
        self._heartbeat = heartbeat
        self._outputs = outputs
        self._loop = asyncio.get_running_loop()

    def set_process_group(self, attempt: Attempt, group: int | None) -> None:
        self._heartbeat.set_process_group(attempt.row.batch, group)

    def pause_renewal(self, attempt: Attempt, *, always: bool = False) -> None:
        if always or attempt.may_be_renewed:
            pause = self._heartbeat.pause(attempt.row.batch)
            asyncio.run_coroutine_threadsafe(pause, self._loop).result()

    async def pause_renewal_async(self, attempt: Attempt, *, always: bool = False) -> None:
        if always or attempt.may_be_renewed:
            await self._heartbeat.pause(attempt.row.batch)

    def resume_renewal(self, attempt: Attempt) -> None:
        self._loop.call_soon_threadsafe(self._heartbeat.add, [attempt.row], time.monotonic())

    def stop_renewal(self, attempt: Attempt) -> None:
        self._loop.call_soon_threadsafe(self._heartbeat.drop_lease, attempt.row)

    def stage_outputs(self, attempt: Attempt) -> None:
        if attempt.output_directory is not None:
            stage = self._outputs.stage(attempt)
            asyncio.run_coroutine_threadsafe(stage, self._loop).result()

    async def stage_outputs_async(self, attempt: Attempt) -> None:
        if attempt.output_directory is not None:
            await self._outputs.stage(attempt)
