"""A worker's calls: what is finished goes out, what is free comes in, in one commit.

Several rounds run at a time, each on a connection of its own, and each takes whatever has gathered
since the last: under load the sets grow by themselves, and an idle worker asks for itself alone.
Nothing that is finished stays here longer than it takes to have a round.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from helixqueue.errors import HelixError, Retryable, Unavailable
from helixqueue.failpoints import failpoint
from helixqueue.records.claim_hints import Hints
from helixqueue.transport.protocol import ClaimRequest, Settlement
from helixqueue.worker.retry import retried

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helixqueue.transport.protocol import ClaimResult, LeaseRow, Transport, WriteResult
    from helixqueue.worker.attempt import Attempt

LOG = logging.getLogger("helixqueue.worker")
# Of one round. Larger rounds cost less per batch, and hold more work ahead of its slots.
SETTLE_MAX = 1_000
CLAIM_MAX = 400
# How long a worker that waits asks to be woken, and how often it says so again.
EXPECT_SECONDS = 90.0
EXPECT_AGAIN_SECONDS = 30.0
# After so many full rounds in a row the queue is busy, and nobody needs to wake us.
FULL_ROUNDS = 5


class ClaimerHost(Protocol):
    """The worker, as its rounds see it."""

    def room(self) -> int:
        """How many more leases it can use."""

    def share(self) -> tuple[int, int]:
        """How many of them are worth a call of its own, and how many one should bring at most."""

    def received(self, rows: Sequence[LeaseRow], asked_at: float) -> None: ...

    def answered(self, attempt: Attempt, settlement: Settlement, answer: WriteResult) -> None: ...

    def is_empty(self) -> bool:
        """Whether nothing is held."""

    def heard(self, trouble: HelixError | None) -> None:
        """A claim was answered, or could not be made."""


Outgoing = tuple["Attempt", Settlement]
Outgoings = dict[int, Outgoing]  # by batch


class Claimer:
    def __init__(
        self,
        transport: Transport,
        queues: Sequence[str],
        host: ClaimerHost,
        *,
        at_a_time: int,
        most: int,
        poll_seconds: float,
        until_idle: bool,
        free: Mapping[str, Any] | None,
    ) -> None:
        self._transport = transport
        self._queues = list(queues)
        self._host = host
        self._at_a_time = at_a_time
        self._most = most
        self._poll_seconds = poll_seconds
        self._until_idle = until_idle
        self._free = free
        self._hints = Hints()
        self._outbox: deque[Outgoing] = deque()
        self._resting: deque[asyncio.Future[None]] = deque()
        self._asking = 0  # leases that were asked for and did not come yet
        self._sending = 0
        self._hungry = True
        self._scarce = True
        self._claims = True
        self._short = asyncio.Event()
        self._full_rounds = 0
        self._fed_at = 0.0
        self._expected_at: float | None = None
        self._busy: asyncio.Task[None] | None = None
        self.idle = asyncio.Event()
        self.flushed = asyncio.Event()  # nothing is on its way, in neither direction
        self.flushed.set()

    async def run(self) -> None:
        """Until cancelled; what cannot be repeated is raised."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._at_a_time):
                group.create_task(self._take_rounds())
            if not self._until_idle:
                group.create_task(self._look_out())

    def finished(self, attempt: Attempt, settlement: Settlement) -> None:
        """To be settled with the next round."""
        self._outbox.append((attempt, settlement))
        self.flushed.clear()
        self._next()

    def there_is_room(self) -> None:
        if self._until_idle:
            self._hungry = True  # whoever ends last finds out that nothing is left
        if self._hungry:
            self._next()

    def stop_claiming(self) -> None:
        self._claims = False
        self._next()

    # Taking turns.

    def _is_needed(self) -> bool:
        if self._outbox:
            return True
        alone = not (self._scarce and self._asking)
        return self._claims and self._hungry and alone and self._count() >= self._share()[0]

    def _count(self) -> int:
        if not self._claims:
            return 0
        return min(self._host.room() - self._asking, self._share()[1], self._most)

    def _share(self) -> tuple[int, int]:
        """The least that is worth a call of its own, and the most that one call should bring."""
        # Where little was found the last time, one call finds out whether that changed, and for
        # one batch: that is the quickest to ask for, and whoever is woken is mostly woken for one.
        return (1, 1) if self._scarce else self._host.share()

    def _next(self) -> None:
        while self._resting:
            one = self._resting.popleft()
            if not one.done():
                one.set_result(None)
                return

    async def _take_rounds(self) -> None:
        while True:
            while not self._is_needed():
                turn = asyncio.get_running_loop().create_future()
                self._resting.append(turn)
                await turn
            await self._round()
            await asyncio.sleep(0)  # what came begins before more is asked for

    async def _round(self) -> None:
        out = self._finished()
        count = max(self._count(), 0)
        self._asking += count
        self._sending += 1
        self.flushed.clear()
        if self._is_needed():
            self._next()
        try:
            await (self._claim(out, count) if count else self._settle(out))
        finally:
            self._asking -= count
            self._sending -= 1
            if not self._outbox and not self._sending:
                self.flushed.set()
        if self.flushed.is_set() and self._until_idle and self._host.is_empty():
            self.there_is_room()  # nobody else will find out that nothing is left

    def _finished(self) -> Outgoings:
        """What one call settles: of each batch one attempt, so that its answer is about that one.

        A batch is here twice when it came back to us under another token; the next call has it.
        """
        out: Outgoings = {}
        while self._outbox and len(out) < SETTLE_MAX:
            batch = self._outbox[0][1].batch
            if batch in out:
                break
            out[batch] = self._outbox.popleft()
        return out

    async def _settle(self, out: Outgoings) -> None:
        failpoint("settle.before")
        settlements = [settlement for _, settlement in out.values()]
        try:
            answers = await retried(lambda: self._transport.settle(settlements))
        except (Unavailable, Retryable):
            raise
        except HelixError as error:
            answers = await self._settle_apart(settlements, error)
        self._answered(out, answers)

    async def _claim(self, out: Outgoings, count: int) -> None:
        if out:
            failpoint("settle.before")
        asked_at = time.monotonic()
        ask = ClaimRequest(
            request=uuid.uuid4(),  # one for all repeats: a lost reply gives the same leases
            queues=self._queues,
            count=count,
            settle=[settlement for _, settlement in out.values()],
            free=self._free,
            hints=self._hints.now(asked_at),
        )
        try:
            claimed = await retried(lambda: self._ask(ask))
        except (Unavailable, Retryable):
            raise
        except HelixError:
            if not out:
                raise
            await self._settle(out)  # one of these is at fault; the claim comes again
            return
        self._host.heard(None)
        self._answered(out, claimed.settled)
        self._received(ask, claimed, asked_at)

    async def _ask(self, ask: ClaimRequest) -> ClaimResult:
        try:
            return await self._transport.claim(ask)
        except HelixError as error:
            self._host.heard(error)
            raise

    async def _settle_apart(
        self, settlements: Sequence[Settlement], error: HelixError
    ) -> list[WriteResult]:
        """One of these cannot be said at all; it must not keep the others from being said."""
        if len(settlements) > 1:
            answers = []
            for one in settlements:
                try:
                    answers += await retried(lambda one=one: self._transport.settle([one]))  # type: ignore[misc]
                except (Unavailable, Retryable):
                    raise
                except HelixError as of_one:
                    answers += await self._settle_apart([one], of_one)
            return answers
        [one] = settlements
        LOG.error("batch %d could not be settled: %s", one.batch, error)
        told = Settlement(
            one.batch,
            one.token,
            "failed",
            failure="unsettled",
            detail=f"could not be settled: {ascii(str(error))[:1000]}",
        )
        return await retried(lambda: self._transport.settle([told]))

    def _answered(self, out: Outgoings, answers: Sequence[WriteResult]) -> None:
        if len(answers) != len(out):
            raise AssertionError(f"expected {len(out)} answers, got {len(answers)}")
        for answer in answers:
            attempt, settlement = out[answer.batch]
            self._host.answered(attempt, settlement, answer)

    def _received(self, ask: ClaimRequest, claimed: ClaimResult, asked_at: float) -> None:
        short = self._scarce = len(claimed.leases) < ask.count and not claimed.more
        self._hints.learn(claimed.hints, short=short)
        if claimed.leases:
            self._host.received(claimed.leases, asked_at)
        self._full_rounds = 0 if short else self._full_rounds + 1
        if not short:
            self._hungry = True
            if self._full_rounds == FULL_ROUNDS and self._expected_at is not None:
                self._expected_at = None
                self._busy = asyncio.create_task(
                    self._repeat_lightly(self._transport.busy(self._queues))
                )
            return
        if ask.hints and not claimed.leases:
            self._hungry = True  # behind the hints there may be some; the next round looks without
            return
        if self._fed_at > asked_at:
            self._hungry = True  # what woke us meanwhile may have come too late for this call
            return
        self._hungry = False
        self._short.set()
        # Of several calls that are under way the last one to be answered decides.
        alone = self._asking == ask.count and not self._outbox
        if not claimed.leases and alone and self._host.is_empty():
            self.idle.set()

    # Waiting for work.

    async def _look_out(self) -> None:
        """While there is nothing to claim: say that we wait, wait, and look again."""
        while True:
            await self._short.wait()
            self._short.clear()
            if self._expected_at is None or self._expects_again():
                await self._repeat_lightly(self._transport.expect(self._queues, EXPECT_SECONDS))
                first = self._expected_at is None
                self._expected_at = time.monotonic()
                if first:
                    self._feed()  # what came before we said so woke nobody
                    continue
            await self._transport.woken(self._poll_seconds * random.uniform(0.9, 1.1))  # noqa: S311
            self._feed()

    def _expects_again(self) -> bool:
        since = time.monotonic() - (self._expected_at or 0.0)
        return since > EXPECT_AGAIN_SECONDS

    async def _repeat_lightly(self, ask: Any) -> None:
        """Waking is a comfort: a worker that cannot be woken polls."""
        try:
            await ask
        except HelixError as error:
            self._expected_at = None
            self._host.heard(error)
            await asyncio.sleep(self._poll_seconds)

    def _feed(self) -> None:
        self._hungry = True
        self._fed_at = time.monotonic()
        if self._count() <= 0:
            self._short.set()  # no room now; look again in a while
        self._next()
