"""The life of one worker: slots that run handlers, rounds that bring work, two ways to lose.

An attempt is lost when a renewal is refused, or when none succeeded until shortly before the
lease's end (on the monotonic clock, counted from before the claim was sent). Then its coroutine is
cancelled, its thread is told, its process is killed, and nothing of it is written.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from helixqueue.errors import HelixError
from helixqueue.transport.protocol import LeaseRef
from helixqueue.worker.attempt import Attempt, margin
from helixqueue.worker.claimer import CLAIM_MAX, Claimer
from helixqueue.worker.executor import Executor
from helixqueue.worker.health import WorkerHealth
from helixqueue.worker.heartbeat import Heartbeat
from helixqueue.worker.outcomes import report_lost, report_mismatch
from helixqueue.worker.retry import retried

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from helixqueue.transport.protocol import LeaseRow, Settlement, Transport, WriteResult
    from helixqueue.worker.handlers import QueueHandler
    from helixqueue.worker.health import WorkSummary
    from helixqueue.worker.options import WorkerOptions

LOG = logging.getLogger("helixqueue.worker")
AHEAD_SECONDS = 0.1  # of work that is fetched before a slot is free for it
WAIT_SECONDS = 2.0  # for a slot; then it was not as quick as it seemed, and others may be free
BREATH = 20  # attempts in a row after which a slot lets the others run
WATCH_SECONDS = 0.5
HELLO_SECONDS = 15.0
DRAIN_LOOK_SECONDS = 0.005  # how often, while what runs may still finish
CANCEL_SECONDS = 5.0  # for a cancelled handler to end


class Worker:
    def __init__(
        self,
        transport: Transport,
        jobs: Mapping[str, QueueHandler],
        options: WorkerOptions,
        submit: Callable[..., Any],
        submit_async: Callable[..., Any],
        *,
        renews: bool = True,
    ) -> None:
        """Without `renews` leases end when they end: for tests, which have no time."""
        self.worker = transport.worker
        self.local, self.async_local = transport.local, transport.async_local
        self.submit, self.submit_async = submit, submit_async
        self._renews = renews
        self._transport = transport
        self._jobs = jobs
        self._options = options
        self.health = WorkerHealth(options.slots)
        self.renewals = Heartbeat(transport.spec, self)
        self._rounds = Claimer(
            transport,
            sorted(jobs),
            self,
            at_a_time=options.rounds,
            most=1 if options.free is not None else options.prefetch or CLAIM_MAX,
            poll_seconds=options.poll_seconds,
            until_idle=options.until_idle,
            free=options.free,
        )
        self._runner = Executor(self, transport, jobs, self._rounds, self.health)
        self._held: dict[int, Attempt] = {}
        self._ready: deque[Attempt] = deque()  # for a slot
        self._resting: deque[asyncio.Future[None]] = deque()  # slots that wait for one
        self._unwanted: list[Attempt] = []  # came when nothing new is begun any more
        self._running: dict[Attempt, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._at_once = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    # From outside.

    async def run(self) -> WorkSummary:
        """Work until stopped, or until there is nothing left; raises what cannot be repeated."""
        if self._renews:
            await self.renewals.start()
        # Without any of these it would hold leases on which nobody works, or nobody watches.
        forever = [self._slot] * self._options.slots
        forever += [self._rounds.run, self._watch, self._return_what_waits, self._say_hello]
        parts = [asyncio.create_task(one()) for one in forever]
        ends = [asyncio.create_task(self._stop.wait())]
        if self._options.until_idle:
            ends.append(asyncio.create_task(self._rounds.idle.wait()))
        try:
            await asyncio.wait([*parts, *ends], return_when=asyncio.FIRST_COMPLETED)
            if ended := [part for part in parts if part.done()]:
                await self._give_back("its worker failed", seconds=CANCEL_SECONDS)
                raise _only(ended[0])
            await self._drain()
        except asyncio.CancelledError:
            await self._give_back("its worker was cancelled", seconds=CANCEL_SECONDS)
            raise
        finally:
            for task in (*parts, *ends):
                task.cancel()
            await asyncio.gather(*parts, *ends, return_exceptions=True)
            await asyncio.gather(self.renewals.close(), self._transport.close())
        return self.health.counts

    def stop(self) -> None:
        """Finish what runs within the grace time and take nothing new; twice: give back at once."""
        if self._stop.is_set():
            self._at_once.set()
        self._stop.set()

    # What the rounds ask and tell.

    def room(self) -> int:
        busy = len(self._running) + len(self._ready) + self.health.stuck
        return self._options.slots + self._ahead() - busy

    def share(self) -> tuple[int, int]:
        """The least that is worth a call of its own, and the most that one call should bring.

        Quick work comes in equal parts over all calls, slow work as soon as there is a slot for it.
        """
        slots, calls = self._options.slots, self._options.rounds
        ahead = self._ahead()
        if ahead < slots:
            return 1, slots
        most = -(-(slots + ahead) // calls)
        return most // 2, most

    def _ahead(self) -> int:
        """Quick work is fetched ahead of its slot, slow work never: others are free for it."""
        slots = self._options.slots
        if self._options.prefetch is not None:
            return self._options.prefetch - 1
        if self._options.free is not None:
            return 0
        most = max(0, self._options.rounds * CLAIM_MAX - slots)
        return min(most, int(slots * AHEAD_SECONDS / max(self._runner.pace, 1e-4)))

    def received(self, rows: Sequence[LeaseRow], asked_at: float) -> None:
        self.renewals.add(rows, asked_at)
        for row in rows:
            earlier = self._held.get(row.batch)
            if earlier is not None and not earlier.finished and not earlier.settled:
                # Its lease ran out, was reaped, and came back to us: the older token is dead. (One
                # that is finished will be answered, and one that is settled was: it may be its
                # failure that brought this.)
                self._lose(
                    earlier, "lost: it ran out and was claimed again", self._transport.worker
                )
            attempt = self._held[row.batch] = Attempt(row, asked_at)
            if self._stop.is_set():
                self._unwanted.append(attempt)
            else:
                self._ready.append(attempt)
        for _ in range(min(len(rows), len(self._resting))):
            slot = self._resting.popleft()
            if not slot.done():
                slot.set_result(None)
        self.health.held = len(self._held)

    def answered(self, attempt: Attempt, settlement: Settlement, answer: WriteResult) -> None:
        counts = self.health.counts
        if answer.answer == "ok" or answer.answer == "repeat":  # noqa: PLR1714 - for every batch
            if settlement.outcome == "completed":
                counts.completed += 1
            else:
                counts.failed += 1
            if answer.mismatch:
                report_mismatch(attempt.row.batch_id, self.worker)
        else:
            counts.lost += 1
            report_lost(attempt.row.batch_id, answer)
        self.forget(attempt)

    def is_empty(self) -> bool:
        return not self._held

    def heard(self, trouble: HelixError | None) -> None:
        self.health.heard(trouble)

    # What the renewer tells.

    def renewed(self, leases: Sequence[tuple[int, int]], asked_at: float) -> None:
        for batch, number in leases:
            attempt = self._held.get(batch)
            if attempt is not None and attempt.row.token.number == number:
                attempt.renewed(asked_at)

    def refused(self, batch: int, number: int, owner: str | None, state: str | None) -> None:
        attempt = self._held.get(batch)
        if attempt is not None and attempt.row.token.number == number and not attempt.settled:
            if attempt.doubt is not None and owner is None and state != "CANCELLED":
                return  # its own transaction may have ended it; the ledger tells when it is over
            why = "cancelled" if state == "CANCELLED" else f"refused: the batch is {state}"
            self._lose(attempt, why, owner)

    # What leases need.

    def group(self, attempt: Attempt, group: int | None) -> None:
        self.renewals.group(attempt.row.batch, group)

    def quiet(self, attempt: Attempt, *, for_good: bool = False) -> None:
        if for_good or not attempt.is_young:
            asked = self.quiet_async(attempt, for_good=for_good)
            asyncio.run_coroutine_threadsafe(asked, self._loop).result()

    async def quiet_async(self, attempt: Attempt, *, for_good: bool = False) -> None:
        if for_good or not attempt.is_young:
            await self.renewals.quiet(attempt.row.batch)

    def loud(self, attempt: Attempt) -> None:
        self._loop.call_soon_threadsafe(self.renewals.add, [attempt.row], time.monotonic())

    def settled(self, attempt: Attempt) -> None:
        self._loop.call_soon_threadsafe(self.renewals.drop_lease, attempt.row)

    # Slots.

    async def _slot(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("a slot is a task")
        done = 0
        while True:
            attempt = await self._next_attempt()
            if attempt.end is not None:
                continue
            self._running[attempt] = task
            self.health.busy = len(self._running)
            try:
                await self._runner.run(attempt)
            finally:
                self._running.pop(attempt, None)
                self.health.busy = len(self._running)
            self._rounds.there_is_room()
            done += 1
            if done % BREATH == 0:
                await asyncio.sleep(0)

    async def _next_attempt(self) -> Attempt:
        while not self._ready:
            turn = self._loop.create_future()
            self._resting.append(turn)
            await turn
        return self._ready.popleft()

    # Losing.

    def _lose(self, attempt: Attempt, why: str, owner: str | None = None) -> None:
        if attempt.end is not None:
            return
        whose = f"{why}; {owner} had it next" if owner else why
        LOG.warning("%s lost batch %s: %s", self._transport.worker, attempt.row.batch_id, whose)
        attempt.ends("lost", why, owner)
        self._halt(attempt)

    def _halt(self, attempt: Attempt) -> None:
        task = self._running.get(attempt)
        if task is not None:
            if attempt.works:  # else it is about to end by itself
                task.cancel()
        elif attempt.end == "lost":
            self.health.counts.lost += 1
            self.forget(attempt)

    def forget(self, attempt: Attempt) -> None:
        if self._held.get(attempt.row.batch) is attempt:
            del self._held[attempt.row.batch]
            self.renewals.drop(attempt.row.batch)
        self.health.held = len(self._held)

    async def _watch(self) -> None:
        """Fence attempts that could not be renewed, and say so when nothing is heard."""
        said_deaf = False
        while True:
            leases = [one.row.lease_seconds for one in self._held.values()]
            await asyncio.sleep(max(0.01, min([WATCH_SECONDS, *(s / 20 for s in leases)])))
            await self._fence()
            if self.health.is_deaf and not said_deaf:
                LOG.error(
                    "deaf: no claim was answered for %.0f s; %s",
                    self.health.deaf_seconds,
                    self.health.trouble,
                )
            said_deaf = self.health.is_deaf

    async def _fence(self) -> None:
        """Stop what nobody could renew. What is finished is settled: the token decides."""
        due = [one for one in self._held.values() if one.is_due(time.monotonic())]
        if not due:
            return
        # After a handler held the interpreter, what the renewer said meanwhile is still unread.
        await self.renewals.catch_up(min(margin(one.row.lease_seconds) for one in due) / 2)
        for attempt in due:
            if attempt.is_due(time.monotonic()) and not await self._runner.has_settled(attempt):
                self._lose(attempt, "it could not be renewed before its end")

    async def _return_what_waits(self) -> None:
        """Give back what was fetched ahead and found no slot: the work before it was not quick."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            since = time.monotonic() - WAIT_SECONDS
            if self._options.prefetch is None and self._ready and self._ready[0].since < since:
                self._runner.pace = max(self._runner.pace, WAIT_SECONDS)  # fetch no more ahead
                waiting = list(self._ready)
                self._ready.clear()
                await self._release([one for one in waiting if one.end is None], "no slot was free")

    async def _say_hello(self) -> None:
        while True:
            with suppress(HelixError):
                await self._transport.hello(self._told())
            await asyncio.sleep(HELLO_SECONDS)

    def _told(self) -> dict[str, Any]:
        noted = [
            {"batch": str(one.row.batch_id), "fraction": one.note[0], "note": one.note[1]}
            for one in list(self._running)[:50]
            if one.note is not None
        ]
        return {**(self._options.free or {}), "health": self.health.told(), "progress": noted}

    # Stopping.

    async def _drain(self) -> None:
        """Give back what was not begun, finish what was, as far as the grace time goes."""
        self._begin_nothing()
        self._unwanted += self._ready
        self._ready.clear()
        deadline = time.monotonic() + self._options.grace_seconds
        while not self._at_once.is_set() and time.monotonic() < deadline:
            await self._release_unwanted("its worker stops")
            if not self._held and self._rounds.flushed.is_set():
                break
            await asyncio.sleep(DRAIN_LOOK_SECONDS)
        await self._give_back("its worker stops", seconds=CANCEL_SECONDS)

    def _begin_nothing(self) -> None:
        self._stop.set()
        self._rounds.stop_claiming()

    async def _give_back(self, why: str, *, seconds: float) -> None:
        """Stop what runs and hand it to others; what is finished is still settled."""
        self._begin_nothing()
        begun = list(self._running)
        for attempt in begun:
            attempt.ends("given back", why)
            self._halt(attempt)
        deadline = time.monotonic() + seconds
        while (
            left := [self._running[one] for one in begun if one in self._running]
        ) and time.monotonic() < deadline:
            await asyncio.wait(left, timeout=0.01)
        rest = [one for one in self._held.values() if not one.finished and not one.settled]
        await self._release([one for one in rest if one.end in {None, "given back"}], why)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rounds.flushed.wait()
        await self._release_unwanted(why)

    async def _release_unwanted(self, why: str) -> None:
        """Also what a claim brought that was under way when the worker was stopped."""
        unwanted, self._unwanted = self._unwanted, []
        await self._release([one for one in unwanted if one.end is None], why)

    async def _release(self, attempts: list[Attempt], why: str) -> None:
        if not attempts:
            return
        for attempt in attempts:
            await self.quiet_async(attempt)
        held = [LeaseRef(one.row.batch, one.row.token) for one in attempts]
        with suppress(HelixError):  # then the leases run out
            answers = await retried(
                lambda: self._transport.release(held, why), seconds=CANCEL_SECONDS
            )
            self.health.counts.given_back += sum(one.answer == "ok" for one in answers)
        for attempt in attempts:
            attempt.ends("given back", why)
            self.forget(attempt)


def _only(part: asyncio.Task[None]) -> BaseException:
    """What ended a part that should not end; of a group of errors the first."""
    error = part.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error or AssertionError("the parts of a worker end by an error only")
