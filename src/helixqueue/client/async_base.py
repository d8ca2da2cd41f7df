"""What every client for event loops can do, whichever way it asks, except submit and settle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from helixqueue.operations.steps import Step, Steps, run_steps_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from helixqueue.client.run_worker import Queues
    from helixqueue.operations.batches import Operations, Which
    from helixqueue.queues import Queue
    from helixqueue.records.read_rows import BatchRow, EventRow, Letter
    from helixqueue.records.rows import ActionResult, LeaseRef, LeaseRow, Receipt, WriteResult
    from helixqueue.states import State
    from helixqueue.transport.protocol import Transport
    from helixqueue.worker.health import WorkSummary
    from helixqueue.worker.options import WorkerOptions, WorkOptions

T = TypeVar("T")
R = TypeVar("R")


class AsyncBaseClient(ABC):
    """A desk, and hands that perform what it plans."""

    _desk: Operations

    async def state(self, receipt: Receipt[Any] | UUID) -> State:
        """Where the batch stands now."""
        return await self._do(self._desk.state(receipt))

    async def wait(
        self,
        receipt: Receipt[Any] | UUID,
        timeout: float | None = None,  # noqa: ASYNC109 - as its twin has it
    ) -> State:
        """Wait until the batch is COMPLETED, FAILED or CANCELLED; `InProgress` after `timeout`."""
        return await self._do(self._desk.wait(receipt, timeout))

    @overload
    async def result(self, receipt: Receipt[R], queue: None = None) -> R: ...
    @overload
    async def result(self, receipt: Receipt[Any] | UUID, queue: Queue[Any, R]) -> R: ...
    @overload
    async def result(self, receipt: UUID, queue: None = None) -> Any: ...
    async def result(self, receipt: Which, queue: Queue[Any, Any] | None = None) -> Any:
        """The result, typed if this client has used the declared queue or is given it.

        Raises `InProgress` before the end, `NoResult` after another end than COMPLETED.
        """
        return await self._do(self._desk.result(receipt, queue))

    async def history(self, receipt: Receipt[Any] | UUID) -> list[EventRow]:
        """Every step of the batch, from the ledger."""
        return await self._do(self._desk.history(receipt))

    async def batches(
        self,
        *,
        queue: Queue[Any, Any] | str | None = None,
        state: State | str | None = None,
        identity: str | tuple[str, ...] | None = None,
        worker: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncIterator[BatchRow]:
        """The tenant's batches, newest first; an identity may come in any spelling."""
        after: str | None = None
        while True:
            page = await self._do(
                self._desk.page(
                    queue=queue,
                    state=state,
                    identity=identity,
                    worker=worker,
                    since=since,
                    until=until,
                    after=after,
                )
            )
            for row in page.rows:
                yield row
            after = page.next
            if after is None:
                return

    async def letters(
        self,
        *,
        queue: Queue[Any, Any] | str | None = None,
        failure: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
    ) -> AsyncIterator[Letter]:
        """The tenant's dead letters, those that failed last first; `failure` is their class.

        Work that failed for good, or as often as its queue lets it try.
        """
        after: str | None = None
        while True:
            page = await self._do(
                self._desk.letter_page(
                    queue=queue, failure=failure, since=since, before=before, after=after
                )
            )
            for letter in page.rows:
                yield letter
            after = page.next
            if after is None:
                return

    async def redrive(
        self, letters: Iterable[Letter | Receipt[Any] | UUID], *, reason: str
    ) -> list[ActionResult]:
        """Give dead letters all their tries again; what became of each, `ok` or `refused`.

        One that is none (any more) is refused, says so in its answer and hinders no other.
        """
        return await self._do(self._desk.redrive(letters, reason))

    async def cancel(self, receipt: Receipt[Any] | UUID, *, reason: str) -> State:
        """Give the batch up, also while it runs: its worker's token dies."""
        return await self._do(self._desk.decide("cancel", receipt, reason))

    async def retry(self, receipt: Receipt[Any] | UUID, *, reason: str) -> State:
        """FAILED becomes PENDING, with all tries anew."""
        return await self._do(self._desk.decide("retry", receipt, reason))

    async def erase(self, receipt: Receipt[Any] | UUID, *, reason: str) -> State:
        """Empty payload and result of a finished batch; fingerprint and ledger stay."""
        return await self._do(self._desk.decide("erase", receipt, reason))

    async def claim(
        self,
        worker: str,
        queues: Sequence[Queue[Any, Any] | str],
        n: int = 1,
        free: Mapping[str, Any] | None = None,
        *,
        start: bool = False,
    ) -> list[LeaseRow]:
        """Take up to `n` leases that fit what is `free`; with `start` they are RUNNING at once.

        One call stops at 16 MiB of payloads.
        """
        return await self._do(self._desk.claim(worker, queues, n, free, start=start))

    async def start(self, worker: str, leases: Iterable[LeaseRow | LeaseRef]) -> list[WriteResult]:
        return await self._do(self._desk.hold("start", worker, leases))

    async def renew(self, worker: str, leases: Iterable[LeaseRow | LeaseRef]) -> list[WriteResult]:
        return await self._do(self._desk.hold("renew", worker, leases))

    async def release(
        self, worker: str, leases: Iterable[LeaseRow | LeaseRef]
    ) -> list[WriteResult]:
        return await self._do(self._desk.hold("release", worker, leases))

    async def work(self, queues: Queues, **options: Unpack[WorkOptions]) -> WorkSummary:
        """Do the work of these queues, by their handlers, until stopped or (`until_idle`) done.

        See docs/guides/workers.md.
        """
        from helixqueue.client import run_worker  # noqa: PLC0415 - loaded when used

        return await run_worker.work(self, run_worker.jobs_of(self, queues), options)

    async def know(self, queue: Queue[Any, Any] | str) -> None:
        """Make sure that the queue is there, as it was declared."""
        await self._do(self._desk.known(queue))

    @property
    @abstractmethod
    def submit(self) -> Callable[..., Any]:
        """Submit work once; each kind of client says with which options."""

    @abstractmethod
    def transport(self, options: WorkerOptions) -> Transport:
        """A worker's way to the engine."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """What another process needs to make this client, as JSON; it may hold a secret."""

    @abstractmethod
    def twin(self) -> Any:
        """The same client for threads."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Close the connections, and leave the servers to others of this process."""

    async def _do(self, plan: Steps[T]) -> T:
        return await run_steps_async(plan, self._perform)

    @abstractmethod
    async def _perform(self, step: Step) -> Any: ...
