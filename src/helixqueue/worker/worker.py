"""The life of one worker.

    Claimer   claims leases, starts them and settles what is finished (one call, one commit)
    InFlight  holds every lease of the worker
    Executor  runs the handler of one attempt in each slot and makes its settlement
    Heartbeat renews the leases from another process

A lease is lost when a renewal is refused, or when none succeeded until shortly before its end (on
the monotonic clock, counted from before the claim was sent). The worker then abandons it: the
coroutine is cancelled, the thread is notified, the process is killed, and nothing is written.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING, Any

from helixqueue.errors import HelixError
from helixqueue.failpoints import failpoint
from helixqueue.log.events import log_write
from helixqueue.transport.protocol import LeaseRef
from helixqueue.worker.attempt import abandon_margin
from helixqueue.worker.claimer import Capacity, Claimer
from helixqueue.worker.executor import Executor
from helixqueue.worker.handle import InProcessHandle
from helixqueue.worker.health import WorkerHealth
from helixqueue.worker.heartbeat import Heartbeat
from helixqueue.worker.in_flight import InFlight
from helixqueue.worker.metrics import metrics_endpoint
from helixqueue.worker.output_files import OutputFiles
from helixqueue.worker.retry import with_retries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from helixqueue.transport.protocol import Transport, WriteResult
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.handlers import QueueHandler
    from helixqueue.worker.health import WorkSummary
    from helixqueue.worker.options import WorkerOptions

LOG = logging.getLogger("helixqueue.worker")
WATCH_SECONDS = 0.5
HELLO_SECONDS = 15.0
# A prefetched batch that waits longer for a slot is released: another worker may be free.
SLOT_WAIT_SECONDS = 2.0
ATTEMPTS_PER_YIELD = 20  # of one slot, before it lets other tasks run
DRAIN_POLL_SECONDS = 0.005
CANCEL_SECONDS = 5.0  # for a cancelled handler to end
END_SECONDS = 2.0  # for the report that this worker ends


class Worker:
    def __init__(
        self,
        transport: Transport,
        handlers: Mapping[str, QueueHandler],
        options: WorkerOptions,
        submit: Callable[..., Any],
        submit_async: Callable[..., Any],
        *,
        renews: bool = True,
    ) -> None:
        """Without `renews`, leases are not renewed: for tests with short handlers."""
        self.worker = transport.worker
        self._transport = transport
        self._options = options
        self._renews = renews
        self._handlers = handlers
        self._in_flight = InFlight(transport.worker)
        self._heartbeat = self._in_flight.heartbeat = Heartbeat(transport.spec, self._in_flight)
        self._outputs = self._in_flight.outputs = OutputFiles(transport, sorted(handlers))
        self.health = WorkerHealth(options.slots, self._in_flight)
        self._capacity = Capacity(options, self._in_flight, self.health.handlers)
        self._claimer = Claimer(
            transport,
            sorted(handlers),
            self._in_flight,
            capacity=self._capacity,
            health=self.health,
            options=options,
        )
        self._handle = InProcessHandle(
            transport, self._heartbeat, submit, submit_async, self._outputs
        )
        self._executor = Executor(
            transport,
            handlers,
            self._handle,
            in_flight=self._in_flight,
            capacity=self._capacity,
            claimer=self._claimer,
        )
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> WorkSummary:
        """Work until stopped, or until nothing is left; raises what cannot be retried."""
        options = self._options
        with metrics_endpoint(self.health, options.metrics_host, options.metrics_port):
            try:
                if self._renews:
                    await self._heartbeat.start()
                await self._work()
            finally:
                with suppress(HelixError, TimeoutError):
                    await asyncio.wait_for(self._report(ended=True), END_SECONDS)
                await self._outputs.close(options.grace_seconds)
                closing = [handler.close() for handler in self._handlers.values()]
                await asyncio.gather(self._heartbeat.close(), self._transport.close(), *closing)
        return self.health.counts

    async def _work(self) -> None:
        # If one of these ends, leases would be held without work or without supervision.
        loops = [self._run_slot] * self._options.slots
        loops += [self._claimer.run, self._watch_leases, self._release_waiting, self._say_hello]
        loops += [self._outputs.publish_due]
        tasks = [asyncio.create_task(loop()) for loop in loops]
        ends = [asyncio.create_task(self._stop.wait())]
        if self._options.until_idle:
            ends.append(asyncio.create_task(self._claimer.idle.wait()))
        try:
            await asyncio.wait([*tasks, *ends], return_when=asyncio.FIRST_COMPLETED)
            if ended := [task for task in tasks if task.done()]:
                await self._release_all("its worker failed")
                raise _first_error(ended[0])
            await self._drain()
        except asyncio.CancelledError:
            await self._release_all("its worker was cancelled")
            raise
        finally:
            for task in (*tasks, *ends):
                task.cancel()
            await asyncio.gather(*tasks, *ends, return_exceptions=True)

    def stop(self) -> None:
        """Claim nothing, finish within the grace time; the second call releases at once."""
        running = len(self._in_flight.running)
        batches = f"{running} running batch{'es' * (running != 1)}"
        if self._stop_now.is_set() or not running:
            LOG.info("%s stops", self.worker)
        elif self._stop.is_set():
            LOG.info("%s stops now and returns %s to their queue", self.worker, batches)
        else:
            LOG.info(
                "%s stops: it waits up to %g s for %s; a second Ctrl-C or SIGTERM returns them "
                "to their queue at once, without losing an attempt",
                self.worker,
                self._options.grace_seconds,
                batches,
            )
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()
        self._in_flight.is_stopping = True

    async def _run_slot(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("a slot is a task")
        in_flight, execute = self._in_flight, self._executor.execute
        ready, running = in_flight.ready, in_flight.running
        for done in count(1):
            attempt = ready.popleft() if ready else await in_flight.next_ready()
            if attempt.stop_kind is not None:
                continue
            running[attempt] = task
            try:
                await execute(attempt)
            finally:
                running.pop(attempt, None)
            if done % ATTEMPTS_PER_YIELD == 0:
                await asyncio.sleep(0)

    # Supervision.

    async def _watch_leases(self) -> None:
        """Abandon leases that could not be renewed, and log when the engine is unreachable."""
        was_unreachable = False
        while True:
            leases = [a.row.lease_seconds for a in self._in_flight.held.values()]
            shortest = min(leases, default=20 * WATCH_SECONDS)
            await asyncio.sleep(max(0.01, min(WATCH_SECONDS, shortest / 20)))
            await self._abandon_overdue()
            is_unreachable = self.health.is_unreachable
            if is_unreachable and not was_unreachable:
                LOG.error(
                    "unreachable: no claim was answered for %.0f s; last error: %s",
                    self.health.silent_seconds,
                    self.health.last_error,
                )
            was_unreachable = is_unreachable

    async def _abandon_overdue(self) -> None:
        """Finished attempts are settled whatever the clock says: the token decides."""
        now = time.monotonic()
        overdue = [a for a in self._in_flight.held.values() if a.is_overdue(now)]
        if not overdue:
            return
        # After a handler held the interpreter lock, reports of renewals are still unread.
        margin = min(abandon_margin(a.row.lease_seconds) for a in overdue)
        await self._heartbeat.catch_up(margin / 2)
        for attempt in overdue:
            is_overdue = attempt.is_overdue(time.monotonic())
            if is_overdue and not await self._executor.has_committed(attempt):
                self._in_flight.abandon(attempt, "it could not be renewed before its end")

    async def _release_waiting(self) -> None:
        """Release prefetched batches that wait too long: the work before them was not quick."""
        ready = self._in_flight.ready
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            limit = time.monotonic() - SLOT_WAIT_SECONDS
            if self._options.prefetch is None and ready and ready[0].claimed_at < limit:
                # Prefetch nothing until handlers are quick again.
                slowest = max(self._capacity.handler_seconds, SLOT_WAIT_SECONDS)
                self._capacity.handler_seconds = slowest
                waiting = [attempt for attempt in ready if attempt.stop_kind is None]
                ready.clear()
                await self._release(waiting, "no slot was free")

    async def _say_hello(self) -> None:
        while True:
            with suppress(HelixError):
                await self._report()
            await asyncio.sleep(HELLO_SECONDS)

    async def _report(self, *, ended: bool = False) -> None:
        hello = self._transport.calls.hello(
            worker=self.worker, free=self.status(), tenant=self._transport.tenant, ended=ended
        )
        await self._transport.run(hello)

    def status(self) -> dict[str, Any]:
        """What operators see of this worker: resources, health, progress of its handlers."""
        progress = [
            {"batch": str(a.row.batch_id), "fraction": a.progress[0], "note": a.progress[1]}
            for a in list(self._in_flight.running)[:50]
            if a.progress is not None
        ]
        pool = self._options.device_pool
        resources = self._options.free or {} if pool is None else pool.describe()
        health = {
            "release": version("helixqueue"),
            "queues": sorted(self._handlers),
            **self.health.as_dict(),
        }
        return {**resources, "health": health, "progress": progress}

    # Stopping.

    async def _drain(self) -> None:
        """Release what has not started; finish what has, within the grace time."""
        self._start_nothing_new()
        in_flight = self._in_flight
        in_flight.unstarted += in_flight.ready
        in_flight.ready.clear()
        deadline = time.monotonic() + self._options.grace_seconds
        while not self._stop_now.is_set() and time.monotonic() < deadline:
            await self._release_unstarted("its worker stops")
            if not in_flight.held and self._claimer.flushed.is_set():
                break
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        await self._release_all("its worker stops")

    def _start_nothing_new(self) -> None:
        self._stop.set()
        self._in_flight.is_stopping = True
        self._claimer.stop_claiming()

    async def _release_all(self, reason: str) -> None:
        """Stop every handler and release its lease; what is finished is still settled."""
        self._start_nothing_new()
        running = self._in_flight.running
        stopped = list(running)
        for attempt in stopped:
            attempt.stop("released", reason)
            self._in_flight.cancel(attempt)
        deadline = time.monotonic() + CANCEL_SECONDS
        while left := [running[attempt] for attempt in stopped if attempt in running]:
            if time.monotonic() >= deadline:
                break
            await asyncio.wait(left, timeout=0.01)
        held = [a for a in self._in_flight.held.values() if not a.is_finished and not a.settled_as]
        await self._release([a for a in held if a.stop_kind in {None, "released"}], reason)
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._claimer.flushed.wait()
        await self._release_unstarted(reason)

    async def _release_unstarted(self, reason: str) -> None:
        """Also the leases of a claim that was in flight when the worker was stopped."""
        unstarted, self._in_flight.unstarted = self._in_flight.unstarted, []
        await self._release([a for a in unstarted if a.stop_kind is None], reason)

    async def _release(self, attempts: list[Attempt], reason: str) -> None:
        if not attempts:
            return
        for attempt in attempts:
            await self._handle.pause_renewal_async(attempt)
        leases = [LeaseRef(a.row.batch, a.row.token) for a in attempts]
        call = self._transport.calls.release(worker=self.worker, leases=leases, detail=reason)
        results: Mapping[int, WriteResult] = {}
        with suppress(HelixError):  # else the leases expire
            failpoint("release.before")
            written = await with_retries(self._transport.run, call, seconds=CANCEL_SECONDS)
            failpoint("release.after")
            results = {result.batch: result for result in written}
        for attempt in attempts:
            attempt.stop("released", reason)
            result = results.get(attempt.row.batch)
            if result is None:
                self._in_flight.lost(attempt)
                continue
            log_write(self.worker, "release", attempt.row, result)
            is_released = result.answer in {"ok", "repeat"}
            self.health.counts.released += is_released
            self.health.counts.lost += not is_released
            self._in_flight.forget(attempt)


def _first_error(task: asyncio.Task[None]) -> BaseException:
    """The error that ended a task, and of a group of errors the first."""
    error = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error or AssertionError("the loops of a worker end only by an error")
