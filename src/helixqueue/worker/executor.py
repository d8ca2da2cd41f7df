"""One attempt from its start to its settlement, whichever way it ends."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from helixqueue.errors import HelixError, LeaseLost
from helixqueue.failpoints import failpoint
from helixqueue.queues import Schema
from helixqueue.worker import outcomes
from helixqueue.worker.attempt import margin
from helixqueue.worker.lease import WorkerHandle
from helixqueue.worker.retry import retried

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helixqueue.transport.protocol import LeaseRow, Settlement, Transport
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.claimer import Claimer
    from helixqueue.worker.handlers import QueueHandler
    from helixqueue.worker.health import WorkerHealth

LOG = logging.getLogger("helixqueue.worker")
SCHEMA_SECONDS = 30.0  # how long a stored schema is believed
# A schema and until when it is believed.
Believed = tuple[float, Schema | None]
UNREAD: Believed = (float("-inf"), None)
UNASKED: Believed = (float("inf"), None)


class ExecutorHost(WorkerHandle, Protocol):
    """The worker, as its attempts see it."""

    def forget(self, attempt: Attempt) -> None:
        """It has ended, and everything about it was said."""


class Executor:
    def __init__(
        self,
        host: ExecutorHost,
        transport: Transport,
        jobs: Mapping[str, QueueHandler],
        rounds: Claimer,
        health: WorkerHealth,
    ) -> None:
        self._host = host
        self._transport = transport
        self._jobs = jobs
        self._rounds = rounds
        self._health = health
        self._schemas: dict[tuple[str, str], Believed] = {}
        self._reading = asyncio.Lock()
        self.pace = 1.0  # seconds a handler takes, on average of the last few
        self._ended = 0

    async def run(self, attempt: Attempt) -> None:
        began = time.monotonic()
        settlement = await self._try(attempt, began)
        self._ended += 1
        weight = 0.1 if self._ended > 10 else 1 / self._ended  # of the last ten
        self.pace += (time.monotonic() - began - self.pace) * weight
        if attempt.settled or attempt.doubt is not None or attempt.end in {"lost", "given back"}:
            await self._end_otherwise(attempt, settlement)
        else:
            await self._finish(attempt, settlement)

    async def _try(self, attempt: Attempt, began: float) -> Settlement:
        """Let the handler do it; whatever that comes to is a settlement."""
        job = self._jobs[attempt.row.queue]
        try:
            stored = (attempt.row.tenant, job.name)
            until, schema = UNASKED if job.checks_itself else self._schemas.get(stored, UNREAD)
            if until < began:
                schema = await self._read_schema(attempt.row)
            failpoint("start")
            value = await self._handle(attempt, job, schema)
            return outcomes.completed(attempt.row, job.queue, schema, value)
        except asyncio.CancelledError as cancelled:
            if attempt.end is None:
                raise
            _uncancelled()
            self._note_stuck(attempt, cancelled)
            return outcomes.failed(attempt.row, RuntimeError(attempt.why))
        except TimeoutError as error:
            # Ours, or one of the handler's own.
            late = job.time_limit is not None and time.monotonic() - began >= job.time_limit
            if late and not attempt.settled:
                attempt.ends("timeout", "it took too long")
                self._note_stuck(attempt, error.__cause__)
            return outcomes.failed(attempt.row, _timeout(job.time_limit) if late else error)
        except LeaseLost as lost:
            if not attempt.settled:
                attempt.ends("lost", str(lost), lost.owner)
            return outcomes.failed(attempt.row, lost)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises
            return outcomes.failed(attempt.row, error)

    async def _handle(self, attempt: Attempt, job: QueueHandler, schema: Schema | None) -> Any:
        if attempt.end is not None:
            raise LeaseLost(attempt.why, owner=attempt.owner)
        attempt.works = True
        try:
            if job.time_limit is None:
                return await job.run(attempt, schema, self._host)
            async with asyncio.timeout(job.time_limit):
                return await job.run(attempt, schema, self._host)
        finally:
            attempt.works = False

    async def _finish(self, attempt: Attempt, settlement: Settlement) -> None:
        attempt.finished = True
        if not attempt.is_young:
            await self._host.quiet_async(attempt)
        self._rounds.finished(attempt, settlement)

    async def _end_otherwise(self, attempt: Attempt, settlement: Settlement) -> None:
        """An attempt that its handler settled, or seems to have, or that is not ours any more."""
        doubt, attempt.doubt = attempt.doubt, None
        if attempt.settled is None and doubt is not None:
            took_effect = await retried(lambda: self._transport.settled(attempt.row))
            attempt.settled = doubt.outcome if took_effect else None
        if attempt.settled is not None:
            self._health.counts.completed += attempt.settled == "completed"
            self._health.counts.failed += attempt.settled == "failed"
            self._host.forget(attempt)
        elif attempt.end == "lost":
            if attempt.refused is not None:
                # The refusal was rolled back with the effect: say it again, so that it stays. Only
                # what was refused: a transaction in doubt has its effect, and this would not.
                with suppress(HelixError):
                    await self._transport.settle([attempt.refused])
            self._health.counts.lost += 1
            self._host.forget(attempt)
        elif attempt.end != "given back":  # else whoever does that goes on
            if settlement.outcome == "completed":
                error = RuntimeError("the transaction that settled this attempt did not commit")
                settlement = outcomes.failed(attempt.row, error)
            await self._finish(attempt, settlement)

    async def has_settled(self, attempt: Attempt) -> bool:
        """Whether a settlement in doubt has committed: then there is no lease to lose."""
        doubt = attempt.doubt
        if doubt is None:
            return False
        with suppress(HelixError, TimeoutError):
            async with asyncio.timeout(margin(attempt.row.lease_seconds) / 2):
                if await self._transport.settled(attempt.row, wait=False):
                    attempt.settled, attempt.doubt = doubt.outcome, None
        return attempt.settled is not None

    def _note_stuck(self, attempt: Attempt, cancelled: BaseException | None) -> None:
        """A thread goes on though its lease is gone: its slot is not free until it ends."""
        thread = cancelled.args[0] if cancelled is not None and cancelled.args else None
        if isinstance(thread, asyncio.Future) and not thread.done():
            self._health.stuck += 1
            LOG.warning(
                "batch %s: its handler goes on after %s; it was told, and writes nothing",
                attempt.row.batch_id,
                attempt.why,
            )
            thread.add_done_callback(self._unstuck)

    def _unstuck(self, thread: asyncio.Future[Any]) -> None:
        self._health.stuck -= 1
        if not thread.cancelled():
            thread.exception()  # seen, so that nobody warns of it
        self._rounds.there_is_room()

    async def _read_schema(self, row: LeaseRow) -> Schema | None:
        """Of results, as it is stored with the queue. One asks for all who want to know."""
        async with self._reading:
            until, schema = self._schemas.get((row.tenant, row.queue), UNREAD)
            if until < time.monotonic():
                stored = await retried(lambda: self._transport.queue(row.tenant, row.queue))
                document = None if stored is None else stored.result_schema
                schema = Schema(document) if document else None
                self._schemas[row.tenant, row.queue] = (time.monotonic() + SCHEMA_SECONDS, schema)
        return schema


def _uncancelled() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _timeout(limit: float | None) -> outcomes.Failed:
    return outcomes.Failed(outcomes.Failure.TIMEOUT, f"it took longer than {limit:g} s")
