"""The calls of a worker: settle what is finished, claim and start what fits, in one commit.

A few calls are in flight at a time, each on its own connection. Each call carries what has finished
since the last one, so calls grow under load, and an idle worker claims one batch at a time. Nothing
that is finished waits for a timer.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from helixqueue.errors import HelixError, Retryable, Unavailable
from helixqueue.failpoints import failpoint
from helixqueue.records.claim_hints import Hints
from helixqueue.transport.protocol import ClaimRequest, Settlement
from helixqueue.worker.retry import with_retries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from helixqueue.records.device import FormerAllocation
    from helixqueue.transport.protocol import ClaimResult, Transport, WriteResult
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.health import Durations, WorkerHealth
    from helixqueue.worker.in_flight import InFlight
    from helixqueue.worker.options import WorkerOptions

LOG = logging.getLogger("helixqueue.worker")
SETTLE_MAX = 1_000  # of one call
# One call. Larger calls cost less per batch, and hold more work ahead of its slots.
CLAIM_MAX = 400
AHEAD_SECONDS = 0.1  # of work that is claimed before a slot is free for it
AVERAGED_ATTEMPTS = 10
# How long a subscription to wake-ups lasts, and how often a waiting worker renews it.
SUBSCRIBE_SECONDS = 90.0
SUBSCRIBE_EVERY_SECONDS = 30.0
# After this number of full claims in a row the queue is busy: the worker needs no wake-ups.
FULL_CLAIMS = 5

Finished = dict[int, tuple["Attempt", Settlement]]  # by batch


class Supply(IntEnum):
    """What the last claims found."""

    SCARCE = 0  # less than asked for: ask for one batch, the cheapest claim
    UNCERTAIN = 1  # the one batch: ask for more, in one call
    PLENTY = 2  # all that was asked for: use all calls


class Capacity:
    """How many leases a worker asks for: one per free slot, and more ahead of quick handlers."""

    def __init__(self, options: WorkerOptions, in_flight: InFlight, handlers: Durations) -> None:
        self._handlers = handlers
        self._slots = options.slots
        self._calls = options.concurrent_calls
        self._prefetch = options.prefetch
        self._one_by_one = options.one_by_one
        self._in_flight = in_flight
        self._recorded = 0
        self.handler_seconds = 1.0  # moving average
        self.call_max = 1 if self._one_by_one else CLAIM_MAX

    def record(self, seconds: float) -> None:
        """Count the duration of one attempt: in the metrics, and into the average."""
        self._handlers.observe(seconds)
        self._recorded += 1
        weight = 1 / min(self._recorded, AVERAGED_ATTEMPTS)
        self.handler_seconds += (seconds - self.handler_seconds) * weight

    def free(self) -> int:
        """How many more leases the worker can use."""
        busy = len(self._in_flight.running) + len(self._in_flight.ready)
        return self._slots + self._ahead() - busy - self._in_flight.stuck_threads

    def call_size(self) -> tuple[int, int]:
        """The fewest leases that are worth a call, and the most that one call asks for.

        Quick work is divided equally among the calls. Slow work is claimed as soon as a slot is
        free for it.
        """
        ahead = self._ahead()
        if ahead < self._slots:
            return 1, min(self._slots, self.call_max)
        most = -(-(self._slots + ahead) // self._calls)
        return most // 2, min(most, self.call_max)

    def _ahead(self) -> int:
        """Quick work is claimed ahead of its slot, slow work never: other workers may be free."""
        if self._prefetch is not None:
            return self._prefetch - 1
        if self._one_by_one:
            return 0
        most = max(0, self._calls * CLAIM_MAX - self._slots)
        return min(most, int(self._slots * AHEAD_SECONDS / max(self.handler_seconds, 1e-4)))


class Claimer:
    def __init__(
        self,
        transport: Transport,
        queues: Sequence[str],
        in_flight: InFlight,
        *,
        capacity: Capacity,
        health: WorkerHealth,
        options: WorkerOptions,
    ) -> None:
        self._transport = transport
        self._queues = list(queues)
        self._in_flight = in_flight
        self._capacity = capacity
        self._health = health
        self._options = options
        self._hints = Hints()
        self._former: Sequence[FormerAllocation] = ()  # of this host, as the last claim found it
        self._finished: deque[tuple[Attempt, Settlement]] = deque()
        self._idle_callers: deque[asyncio.Future[None]] = deque()
        self._requested = 0  # leases that calls in flight ask for
        self._calls = 0  # in flight
        self._claims = True  # false when the worker stops
        self._wants_work = True
        self._supply = Supply.SCARCE
        self._is_scarce = asyncio.Event()
        self._full_claims = 0
        self._claimed_at = 0.0  # when the last claim was sent
        self._woken_at = 0.0
        self._subscribed_at: float | None = None
        self._unsubscribing: asyncio.Task[bool] | None = None
        self.idle = asyncio.Event()  # nothing is held, and a claim found nothing
        self.flushed = asyncio.Event()  # no call is in flight, and nothing waits for one
        self.flushed.set()

    async def run(self) -> None:
        """Run until cancelled; errors that cannot be retried are raised."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.concurrent_calls):
                group.create_task(self._call_repeatedly())
            if not self._options.until_idle:
                group.create_task(self._listen_for_work())

    def settle(self, attempt: Attempt, settlement: Settlement) -> None:
        """Send the settlement with the next call."""
        self._finished.append((attempt, settlement))
        self.flushed.clear()
        if self._options.until_idle:
            self._wants_work = True  # the last attempt finds out that nothing is left
        if self._idle_callers:
            self._start_call()

    def slot_freed(self) -> None:
        """An attempt ended without a settlement to send."""
        if self._options.until_idle:
            self._wants_work = True
        if self._wants_work:
            self._start_call()

    def stop_claiming(self) -> None:
        self._claims = False
        self._start_call()

    # When to call.

    def _needs_call(self) -> bool:
        if self._finished:
            return True
        if not (self._claims and self._wants_work):
            return False
        # While work is scarce, one claim at a time finds out whether there is some; a wake-up that
        # came after it was sent needs another.
        is_probing = self._requested and self._supply is not Supply.PLENTY
        if is_probing and self._woken_at <= self._claimed_at:
            return False
        count, least = self._claim_count()
        return count >= least

    def _claim_count(self) -> tuple[int, int]:
        """How many leases to ask for, and the fewest that are worth a call of their own."""
        if not self._claims:
            return 0, 1
        least, most = (1, 1) if self._supply is Supply.SCARCE else self._capacity.call_size()
        return min(self._capacity.free() - self._requested, most), least

    def _start_call(self) -> None:
        while self._idle_callers:
            caller = self._idle_callers.popleft()
            if not caller.done():
                caller.set_result(None)
                return

    async def _call_repeatedly(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._needs_call():
                woken = loop.create_future()
                self._idle_callers.append(woken)
                await woken
            await self._call()
            await asyncio.sleep(0)  # the new attempts start before more is asked for

    async def _call(self) -> None:
        sent = self._take_finished()
        count = max(self._claim_count()[0], 0)
        self._requested += count
        self._calls += 1
        self.flushed.clear()
        if self._idle_callers and self._needs_call():
            self._start_call()
        try:
            await (self._claim(sent, count) if count else self._settle(sent))
        finally:
            self._requested -= count
            self._calls -= 1
            if not self._finished and not self._calls:
                self.flushed.set()
        if self._options.until_idle and self.flushed.is_set() and not self._in_flight.held:
            self.slot_freed()  # no attempt is left that would find out that nothing is left

    def _take_finished(self) -> Finished:
        """The settlements of one call: one attempt per batch, so that its result is unambiguous.

        A batch is here twice when it was claimed again under another token; the next call has it.
        """
        taken: Finished = {}
        finished = self._finished
        while finished and len(taken) < SETTLE_MAX:
            batch = finished[0][1].batch
            if batch in taken:
                break
            taken[batch] = finished.popleft()
        return taken

    # Calls.

    async def _claim(self, sent: Finished, count: int) -> None:
        if sent:
            failpoint("settle.before")
        claimed_at = self._claimed_at = time.monotonic()
        request = ClaimRequest(
            request_id=uuid.uuid4(),  # for all retries: a lost reply returns the same leases
            queues=self._queues,
            count=count,
            settle=[settlement for _, settlement in sent.values()],
            free=await self._free(),
            # A claim that finds little is complete only without hints.
            hints=self._hints.now(claimed_at) if self._supply is Supply.PLENTY else (),
        )
        try:
            claimed = await with_retries(
                self._transport.claim, request, on_error=self._health.call_failed
            )
        except (Unavailable, Retryable):
            raise
        except HelixError:
            if not sent:
                raise
            await self._settle(sent)  # one of these is invalid; the next call claims
            return
        self._former = claimed.former
        self._health.claim_answered(claimed_at)
        self._in_flight.settled(sent, claimed.settled, request.request_id)
        self._record_claim(request, claimed, claimed_at)

    async def _free(self) -> Mapping[str, Any] | None:
        pool = self._options.device_pool
        if pool is None:
            return self._options.free
        attempts = {*self._in_flight.held.values(), *self._in_flight.running}
        held = {str(attempt.row.batch_id) for attempt in attempts}
        gone = await asyncio.to_thread(pool.find_gone, self._former, held) if self._former else ()
        return pool.free(gone)

    async def _settle(self, sent: Finished) -> None:
        failpoint("settle.before")
        settlements = [settlement for _, settlement in sent.values()]
        try:
            results = await with_retries(self._transport.settle, settlements)
        except (Unavailable, Retryable):
            raise
        except HelixError as error:
            results = await self._settle_one_by_one(settlements, error)
        self._in_flight.settled(sent, results)

    async def _settle_one_by_one(
        self, settlements: Sequence[Settlement], error: HelixError
    ) -> list[WriteResult]:
        """One settlement is invalid; it must not affect the others."""
        if len(settlements) > 1:
            results = []
            for settlement in settlements:
                try:
                    results += await with_retries(self._transport.settle, [settlement])
                except (Unavailable, Retryable):
                    raise
                except HelixError as single_error:
                    results += await self._settle_one_by_one([settlement], single_error)
            return results
        [invalid] = settlements
        LOG.error("batch %d could not be settled: %s", invalid.batch, error)
        failed = Settlement(
            invalid.batch,
            invalid.token,
            "failed",
            failure="unsettled",
            detail=f"could not be settled: {ascii(str(error))[:1000]}",
        )
        return await with_retries(self._transport.settle, [failed])

    def _record_claim(self, request: ClaimRequest, claimed: ClaimResult, claimed_at: float) -> None:
        is_short = len(claimed.leases) < request.count and not claimed.more
        self._hints.learn(claimed.hints, short=is_short)
        if claimed.leases:
            self._in_flight.add(claimed.leases, claimed_at, request.request_id)
        if not is_short:
            self._record_full_claim()
            return
        self._full_claims = 0
        self._supply = Supply.SCARCE
        self._is_scarce.set()
        if request.hints and not claimed.leases:
            self._wants_work = True  # there may be work before the hints; the next call has none
            return
        if self._woken_at > claimed_at:
            self._wants_work = True  # this claim may have missed the work of the wake-up
            return
        self._wants_work = False
        # Of several calls in flight the last reply decides.
        is_last = self._requested == request.count and not self._finished
        if not claimed.leases and is_last and not self._in_flight.held:
            self.idle.set()

    def _record_full_claim(self) -> None:
        self._wants_work = True
        self._full_claims += 1
        if self._supply is Supply.SCARCE:
            self._supply = Supply.UNCERTAIN
            return
        self._supply = Supply.PLENTY
        self._is_scarce.clear()
        if self._full_claims >= FULL_CLAIMS and self._subscribed_at is not None:
            self._subscribed_at = None
            self._unsubscribing = asyncio.create_task(
                self._succeeds(self._transport.unsubscribe(self._queues))
            )

    # Waiting for work.

    async def _listen_for_work(self) -> None:
        """While work is scarce: wait for a wake-up or for the poll interval, and claim."""
        poll_seconds = self._options.poll_seconds
        while True:
            await self._is_scarce.wait()
            if await self._subscribe():
                self._wake()  # nothing reported work that came before
            jitter = random.uniform(0.9, 1.1)  # noqa: S311
            await self._transport.wait_for_wakeup(poll_seconds * jitter)
            self._wake()

    async def _subscribe(self) -> bool:
        """Subscribe to wake-ups, or renew the subscription; whether it is new."""
        is_new = self._subscribed_at is None
        age = time.monotonic() - (self._subscribed_at or 0.0)
        if not is_new and age <= SUBSCRIBE_EVERY_SECONDS:
            return False
        if not await self._succeeds(self._transport.subscribe(self._queues, SUBSCRIBE_SECONDS)):
            return False
        self._subscribed_at = time.monotonic()
        return is_new

    async def _succeeds(self, call: Awaitable[None]) -> bool:
        """Wake-ups are an optimization: a worker without them polls."""
        try:
            await call
        except HelixError as error:
            self._subscribed_at = None
            self._health.call_failed(error)
            return False
        return True

    def _wake(self) -> None:
        self._wants_work = True
        self._woken_at = time.monotonic()
        self._start_call()
