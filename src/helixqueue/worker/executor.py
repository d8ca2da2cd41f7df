"""Executes one attempt: resolve the handler, run it, turn its outcome into a settlement."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from helixqueue.errors import HelixError, LeaseLost
from helixqueue.failpoints import failpoint
from helixqueue.log.events import log_write
from helixqueue.schemas import Schema
from helixqueue.states import State
from helixqueue.transport.protocol import Settlement
from helixqueue.worker import outcomes
from helixqueue.worker.attempt import FIRST_RENEWAL_FRACTION, abandon_margin
from helixqueue.worker.retry import with_retries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from helixqueue.transport.protocol import LeaseRow, Transport
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.claimer import Capacity, Claimer
    from helixqueue.worker.handle import WorkerHandle
    from helixqueue.worker.handlers import QueueHandler
    from helixqueue.worker.in_flight import InFlight

LOG = logging.getLogger("helixqueue.worker")
SCHEMA_SECONDS = 30.0  # how long a schema that was read is used
CachedSchema = tuple[float, Schema | None]  # valid until, and the schema
NOT_READ: CachedSchema = (float("-inf"), None)


class Executor:
    def __init__(
        self,
        transport: Transport,
        handlers: Mapping[str, QueueHandler],
        handle: WorkerHandle,
        *,
        in_flight: InFlight,
        capacity: Capacity,
        claimer: Claimer,
    ) -> None:
        self._transport = transport
        self._handlers = handlers
        self._in_flight = in_flight
        self._capacity = capacity
        self._claimer = claimer
        self._handle = handle
        self._schemas: dict[tuple[str, str], CachedSchema] = {}
        self._schema_lock = asyncio.Lock()

    async def execute(self, attempt: Attempt) -> None:
        """Run the handler, and give its settlement to the claimer. Every batch takes this path."""
        row = attempt.row
        handler = self._handlers[row.queue]
        started = time.monotonic()
        try:
            schema = None
            if not handler.declares_result:
                valid_until, schema = self._schemas.get((row.tenant, row.queue), NOT_READ)
                if valid_until < started:
                    schema = await self._read_schema(row)
            failpoint("start")
            if attempt.stop_kind is not None:
                raise LeaseLost(attempt.stop_reason, owner=attempt.owner)
            attempt.handler_runs = True
            try:
                call = handler.run(attempt, schema, self._handle)
                limit = handler.time_limit
                value = await (call if limit is None else _with_time_limit(call, limit))
            finally:
                attempt.handler_runs = False
            if value is None and schema is None and not handler.declares_result:
                settlement = Settlement(row.batch, row.token, "completed")
            else:
                settlement = await outcomes.completed_async(row, handler.queue, schema, value)
            if attempt.output_directory is not None:
                await self._in_flight.outputs.stage_finished(attempt)
        except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - of any handler
            settlement = self._failed(attempt, handler, started, error)
            settlement = await self._in_flight.outputs.keep_logs(attempt, settlement)
        ended = time.monotonic()
        self._capacity.record(ended - started)
        if attempt.temporary:
            await self._in_flight.outputs.remove_directories(attempt)
        if (
            attempt.settled_as is not None
            or attempt.unconfirmed is not None
            or attempt.stop_kind is not None
        ):
            await self._end_settled_or_stopped(attempt, settlement)
            return
        attempt.is_finished = True
        if ended - attempt.claimed_at >= row.lease_seconds * FIRST_RENEWAL_FRACTION:
            await self._handle.pause_renewal_async(attempt)
        self._claimer.settle(attempt, settlement)

    def _failed(
        self, attempt: Attempt, handler: QueueHandler, started: float, error: BaseException
    ) -> Settlement:
        """The settlement for what a handler raised; cancellation from outside is raised again."""
        if isinstance(error, asyncio.CancelledError):
            if attempt.stop_kind is None:
                raise error
            _uncancel_task()
            self._count_stuck_thread(attempt, error)
            error = RuntimeError(attempt.stop_reason)
        elif isinstance(error, TimeoutError):
            # The time limit of the queue, or a timeout inside the handler.
            limit = handler.time_limit
            if limit is not None and time.monotonic() - started >= limit:
                if not attempt.settled_as:
                    attempt.stop("timed out", "it exceeded its time limit")
                    self._count_stuck_thread(attempt, error.__cause__)
                error = outcomes.AttemptFailure(
                    outcomes.FailureClass.TIMEOUT, f"it took longer than {limit:g} s"
                )
        elif isinstance(error, LeaseLost) and not attempt.settled_as:
            attempt.stop("abandoned", str(error), error.owner)
        return outcomes.failed(attempt.row, error)

    async def _end_settled_or_stopped(self, attempt: Attempt, settlement: Settlement) -> None:
        """End an attempt that its handler settled, or may have settled, or that was stopped."""
        unconfirmed, attempt.unconfirmed = attempt.unconfirmed, None
        if attempt.settled_as is None and unconfirmed is not None:
            committed = await with_retries(self._transport.was_settled, attempt.row)
            self._record_commit(attempt, unconfirmed, committed=committed)
        counts = self._in_flight.counts
        if attempt.settled_as is not None:
            if attempt.settled_as == "completed":
                counts.completed += 1
                if attempt.manifest is not None:
                    self._in_flight.outputs.publish(attempt.manifest)
            counts.failed += attempt.settled_as == "failed"
            self._in_flight.forget(attempt)
            self._claimer.slot_freed()
        elif attempt.stop_kind == "abandoned":
            if attempt.refused is not None:
                # The refusal was rolled back with the transaction. Send the settlement again to
                # keep the refusal. Only what was refused: an unconfirmed transaction may have
                # committed its effect, and a settlement alone would complete without it.
                try:
                    [result] = await self._transport.settle([attempt.refused])
                    log_write(self._transport.worker, "settle", attempt.row, result)
                except HelixError:
                    attempt.refused = None
            self._in_flight.lost(attempt)
            self._claimer.slot_freed()
        elif attempt.stop_kind != "released":  # else the worker releases the lease
            if settlement.outcome == "completed":
                error = RuntimeError("the transaction that settled this attempt did not commit")
                settlement = outcomes.failed(attempt.row, error)
            attempt.is_finished = True
            await self._handle.pause_renewal_async(attempt)
            self._claimer.settle(attempt, settlement)

    async def has_committed(self, attempt: Attempt) -> bool:
        """Whether an unconfirmed settlement has committed: then there is no lease to abandon."""
        unconfirmed = attempt.unconfirmed
        if unconfirmed is None:
            return False
        with suppress(HelixError, TimeoutError):
            async with asyncio.timeout(abandon_margin(attempt.row.lease_seconds) / 2):
                committed = await self._transport.was_settled(attempt.row, wait=False)
                self._record_commit(attempt, unconfirmed, committed=committed)
        return attempt.settled_as is not None

    def _record_commit(self, attempt: Attempt, unconfirmed: Settlement, *, committed: bool) -> None:
        if committed:
            attempt.settled_as, attempt.unconfirmed = unconfirmed.outcome, None
            log_write(
                self._transport.worker, "settle", attempt.row, decision="repeat",
                outcome=State.COMPLETED if attempt.settled_as == "completed" else None,
                detail=unconfirmed.detail,
            )  # fmt: skip

    def _count_stuck_thread(self, attempt: Attempt, cancelled: BaseException | None) -> None:
        """A thread continues after the end of its lease: its slot is not free until it ends."""
        thread = cancelled.args[0] if cancelled is not None and cancelled.args else None
        if isinstance(thread, asyncio.Future) and not thread.done():
            self._in_flight.stuck_threads += 1
            LOG.warning(
                "batch %s: its handler thread continues although the attempt was stopped (%s); "
                "lease.lost is set, and nothing of it is written",
                attempt.row.batch_id,
                attempt.stop_reason,
            )
            thread.add_done_callback(self._stuck_thread_ended)

    def _stuck_thread_ended(self, thread: asyncio.Future[Any]) -> None:
        self._in_flight.stuck_threads -= 1
        if not thread.cancelled():
            thread.exception()  # retrieved, so that asyncio does not log it
        self._claimer.slot_freed()

    async def _read_schema(self, row: LeaseRow) -> Schema | None:
        """The result schema stored with the queue; concurrent attempts read it once."""
        async with self._schema_lock:
            valid_until, schema = self._schemas.get((row.tenant, row.queue), NOT_READ)
            if valid_until < time.monotonic():
                stored = await with_retries(self._transport.queue, row.tenant, row.queue)
                document = None if stored is None else stored.result_schema
                schema = Schema(document) if document else None
                self._schemas[row.tenant, row.queue] = (time.monotonic() + SCHEMA_SECONDS, schema)
        return schema


async def _with_time_limit(call: Awaitable[Any], seconds: float) -> Any:
    async with asyncio.timeout(seconds):
        return await call


def _uncancel_task() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
