"""What every client for event loops can do, whichever way it asks, except submit and settle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from helixqueue.operations import batch_actions
from helixqueue.operations.steps import Step, Steps, run_steps_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from helixqueue.client.run_worker import Queues
    from helixqueue.operations.batch_actions import BatchFilters, BatchRef
    from helixqueue.operations.batches import Operations, Which
    from helixqueue.queues import Queue
    from helixqueue.records.batch import ActionResult, BatchRow, EventRow
    from helixqueue.records.lease import LeaseRef, LeaseRow, WriteResult
    from helixqueue.records.submission import Receipt
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
        failure: str | None = None,
        identity: str | tuple[str, ...] | None = None,
        worker: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncIterator[BatchRow]:
        """List the tenant's batches, newest first.

        Finished states are listed by the time of their end, all others by the time of submission;
        `since` and `until` (exclusive) refer to that time. `failure` is a failure class and implies
        the state FAILED. An identity matches in any spelling.
        """
        filters: BatchFilters = {
            "queue": queue,
            "state": state,
            "failure": failure,
            "identity": identity,
            "worker": worker,
            "since": since,
            "until": until,
        }
        after: str | None = None
        while True:
            page = await self._do(batch_actions.list_page(self._desk, filters, after))
            for row in page.rows:
                yield row
            after = page.next
            if after is None:
                return

    @overload
    async def cancel(
        self, batches: Receipt[Any] | UUID, *, reason: str, dry_run: bool = False
    ) -> State: ...
    @overload
    async def cancel(
        self,
        batches: Iterable[BatchRef] | None = None,
        *,
        reason: str,
        dry_run: bool = False,
        queue: Queue[Any, Any] | str | None = None,
        state: State | str | None = None,
        identity: str | tuple[str, ...] | None = None,
        worker: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[ActionResult]: ...
    async def cancel(
        self,
        batches: BatchRef | Iterable[BatchRef] | None = None,
        *,
        reason: str,
        dry_run: bool = False,
        queue: Queue[Any, Any] | str | None = None,
        state: State | str | None = None,
        identity: str | tuple[str, ...] | None = None,
        worker: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> State | list[ActionResult]:
        """Cancel batches that have not finished, also while they run: their leases end.

        Takes a receipt or an id and returns the state; or several of them, or filters with a
        `state`, and returns one answer per batch. A dry run changes nothing.
        """
        filters: BatchFilters = {
            "queue": queue,
            "state": state,
            "identity": identity,
            "worker": worker,
            "since": since,
            "until": until,
        }
        return await self._do(
            batch_actions.act_on_batches(
                self._desk, "cancel", batches, filters, reason, dry_run=dry_run
            )
        )

    @overload
    async def retry(
        self, batches: Receipt[Any] | UUID, *, reason: str, dry_run: bool = False
    ) -> State: ...
    @overload
    async def retry(
        self,
        batches: Iterable[BatchRef] | None = None,
        *,
        reason: str,
        dry_run: bool = False,
        queue: Queue[Any, Any] | str | None = None,
        failure: str | None = None,
        identity: str | tuple[str, ...] | None = None,
        worker: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[ActionResult]: ...
    async def retry(
        self,
        batches: BatchRef | Iterable[BatchRef] | None = None,
        *,
        reason: str,
        dry_run: bool = False,
        queue: Queue[Any, Any] | str | None = None,
        failure: str | None = None,
        identity: str | tuple[str, ...] | None = None,
        worker: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> State | list[ActionResult]:
        """Retry FAILED batches: they become PENDING, with all their attempts again.

        Takes a receipt or an id and returns the state; or several of them, or filters, and returns
        one answer per batch. A dry run changes nothing.
        """
        filters: BatchFilters = {
            "queue": queue,
            "failure": failure,
            "identity": identity,
            "worker": worker,
            "since": since,
            "until": until,
        }
        return await self._do(
            batch_actions.act_on_batches(
                self._desk, "retry", batches, filters, reason, dry_run=dry_run
            )
        )

    async def erase(self, receipt: Receipt[Any] | UUID, *, reason: str) -> State:
        """Empty payload and result of a finished batch; fingerprint and ledger stay."""
        return await self._do(batch_actions.act_on_batch(self._desk, "erase", receipt, reason))

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
