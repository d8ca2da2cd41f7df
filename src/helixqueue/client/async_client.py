"""The async client, over PostgreSQL or HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, overload
from uuid import UUID

from helixqueue.client.method_async import async_method, async_rows
from helixqueue.operations import batch_actions, batch_reads, identities, run_calls, submit
from helixqueue.operations import duties as duty_operations
from helixqueue.operations import intakes as intake_operations
from helixqueue.operations import letters as letter_operations
from helixqueue.operations import outputs as output_operations
from helixqueue.operations import queues as queue_operations
from helixqueue.operations import runs as run_operations
from helixqueue.operations import seals as seal_operations
from helixqueue.operations.instructions import Instructions, run_instructions_async
from helixqueue.records.submission import Submission

if TYPE_CHECKING:
    from helixqueue.client.backend import AsyncBackend
    from helixqueue.client.run_worker import Queues
    from helixqueue.identity.twins import TwinGroup
    from helixqueue.operations.batch_actions import BatchRef, FailedFilters, UnfinishedFilters
    from helixqueue.operations.batches import Which
    from helixqueue.queues import Queue
    from helixqueue.records.batch import ActionResult, EventRow
    from helixqueue.records.identity import RefusedIdentityRow
    from helixqueue.records.lease import LeaseRef, LeaseRow, Settlement, WriteResult
    from helixqueue.records.run import RunDetail
    from helixqueue.records.submission import Accepted, Receipt, SubmitOptions, Submitted
    from helixqueue.states import State
    from helixqueue.worker.health import WorkSummary
    from helixqueue.worker.options import WorkOptions

T = TypeVar("T")
P = TypeVar("P")
R = TypeVar("R")
# Connections that `within` takes; None for a client of a service.
W = TypeVar("W")


class AsyncClient(Generic[W]):
    """Methods of every client: each builds an operation, and the backend runs its instructions."""

    def __init__(self, backend: AsyncBackend) -> None:
        self._backend = backend
        self._operations = backend.operations

    async def close(self) -> None:
        """Close the connections and release embedded servers; closing again does nothing."""
        await self._backend.close()

    async def __aenter__(self) -> Self:
        await self._backend.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @overload
    async def submit(
        self,
        queue: Queue[P, R],
        *,
        identity: str | tuple[str, ...] | None,
        payload: P | Mapping[str, Any],
        create: bool = False,
        within: W | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Accepted[R]: ...
    @overload
    async def submit(
        self,
        queue: str,
        *,
        identity: str | tuple[str, ...] | None,
        payload: Any,
        create: bool = False,
        within: W | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Accepted[Any]: ...
    async def submit(
        self,
        queue: Queue[Any, Any] | str,
        *,
        identity: str | tuple[str, ...] | None,
        payload: Any,
        create: bool = False,
        within: W | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Accepted[Any]:
        """Submit a batch once: repeated calls return an equal receipt.

        identity: business identifier, in any spelling; None for work without one.
        payload: a JSON value, or an instance of the queue's payload type.
        revision: another revision of an identity is another batch.
        priority: 0 (first) to 9 (last); 5 by default.
        run_at: earliest time of the first attempt.
        expires_at: the batch is cancelled unless an attempt has started by then.
        limit_key: batches with the same key share the queue's `key_limit`.
        requires: resources that a worker needs, instead of the queue's.
        source: the delivery that asks for the batch, such as ("webhook", "orders", "evt_1").
        create: create a queue that is passed by name and does not exist.
        within: your connection or session, in a transaction; the batch commits with it. Clients of
        a service have none.

        The decision is `new` or `duplicate`. Raises `Conflict` if the identity has another payload,
        and other subclasses of `Refused` for invalid submissions.
        """
        submission = Submission(identity, payload, **options)
        return await self._do(
            submit.submit(self._operations, queue, submission, create=create, within=within)
        )

    @overload
    async def submit_many(
        self,
        queue: Queue[Any, R],
        submissions: Iterable[Submission | Mapping[str, Any]],
        *,
        create: bool = False,
        within: W | None = None,
    ) -> list[Submitted[R]]: ...
    @overload
    async def submit_many(
        self,
        queue: str,
        submissions: Iterable[Submission | Mapping[str, Any]],
        *,
        create: bool = False,
        within: W | None = None,
    ) -> list[Submitted[Any]]: ...
    async def submit_many(
        self,
        queue: Queue[Any, Any] | str,
        submissions: Iterable[Submission | Mapping[str, Any]],
        *,
        create: bool = False,
        within: W | None = None,
    ) -> list[Submitted[Any]]:
        """Submit any number of batches, in chunks; answers are in the order of the input.

        A refused or conflicting row has an error in its answer and does not affect the others. If
        the database becomes unavailable, submit all rows again: stored batches are duplicates.
        """
        return await self._do(
            submit.submit_many(self._operations, queue, submissions, create=create, within=within)
        )

    async def state(self, receipt: Receipt[Any] | UUID) -> State:
        """Return the state of the batch."""
        return await self._do(self._operations.state(receipt))

    async def wait(
        self,
        receipt: Receipt[Any] | UUID,
        timeout: float | None = None,  # noqa: ASYNC109 - as its twin has it
        *,
        outputs: bool = False,
    ) -> State:
        """Wait until the batch is COMPLETED, FAILED or CANCELLED; `InProgress` after `timeout`.

        With `outputs` also until its output files are published.
        """
        return await self._do(self._operations.wait(receipt, timeout, outputs=outputs))

    @overload
    async def result(self, receipt: Receipt[R], queue: None = None) -> R: ...
    @overload
    async def result(self, receipt: Receipt[Any] | UUID, queue: Queue[Any, R]) -> R: ...
    @overload
    async def result(self, receipt: UUID, queue: None = None) -> Any: ...
    async def result(self, receipt: Which, queue: Queue[Any, Any] | None = None) -> Any:
        """Return the result, typed if this client used the declared queue or `queue` is passed.

        Raises `InProgress` before the end, `NoResult` if the batch ended FAILED or CANCELLED.
        """
        return await self._do(self._operations.result(receipt, queue))

    async def history(self, receipt: Receipt[Any] | UUID) -> list[EventRow]:
        """Return the events of the batch, from the ledger."""
        return await self._do(self._operations.history(receipt))

    batch = async_method(batch_reads.show_batch)
    batches = async_rows(batch_reads.list_batches)
    duties = async_method(duty_operations.list_duties)
    findings = async_method(duty_operations.list_findings)
    intakes = async_method(intake_operations.list_intakes)
    letters = async_rows(letter_operations.list_letters)
    letter = async_method(letter_operations.show_letter)
    redrive = async_method(letter_operations.redrive_letter)
    manifests = async_rows(output_operations.list_manifests)
    outputs = async_rows(output_operations.list_outputs)
    seals = async_rows(seal_operations.list_seals)
    runs = async_rows(run_operations.list_runs)
    run = async_method(run_operations.show_run)
    run_text = async_method(run_operations.show_run_text)
    datums = async_rows(run_operations.list_datums)
    run_outputs = async_rows(run_operations.list_run_outputs)
    start_run = async_method(run_operations.start_run)
    append_run = async_method(run_operations.append_run)
    cancel_run = async_method(run_operations.cancel_run)
    retry_run = async_method(run_operations.retry_run)

    async def wait_run(
        self,
        run: str,
        timeout: float | None = None,  # noqa: ASYNC109 - as its twin has it
    ) -> RunDetail:
        """Wait until all batches of a run have ended and its output files have their names."""
        return await self._do(run_calls.wait_run(self._operations, run, timeout))

    async def discard(self, letter_numbers: Sequence[int], *, reason: str) -> dict[int, str]:
        """Discard dead letters: their bytes are deleted, the record stays."""
        return await self._do(
            letter_operations.discard_letters(self._operations, letter_numbers, reason)
        )

    async def refused(
        self, queue: Queue[Any, Any] | str, *, limit: int = 1_000
    ) -> list[RefusedIdentityRow]:
        """List the latest identities that the queue refused, with their raw bytes in hex."""
        return await self._do(identities.refused(self._operations, queue, limit))

    async def twins(self, queue: Queue[Any, Any] | str) -> list[TwinGroup]:
        """List identities of the queue that are easily confused: case, look-alikes."""
        return await self._do(identities.twins(self._operations, queue))

    async def delete_queue(self, queue: Queue[Any, Any] | str, *, reason: str) -> bool:
        """Delete a queue that never had a batch; returns False if it does not exist.

        Raises `Refused` if the queue has or had batches: their keys contain its name.
        """
        return await self._do(queue_operations.delete_if_exists(self._operations, queue, reason))

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
        **filters: Unpack[UnfinishedFilters],
    ) -> list[ActionResult]: ...
    async def cancel(
        self,
        batches: BatchRef | Iterable[BatchRef] | None = None,
        *,
        reason: str,
        dry_run: bool = False,
        **filters: Unpack[UnfinishedFilters],
    ) -> State | list[ActionResult]:
        """Cancel batches that have not finished, also while they run: their leases end.

        Takes a receipt or an id and returns the state; or several of them, or filters with a
        `state`, and returns one answer per batch. A dry run changes nothing.
        """
        return await self._do(
            batch_actions.act_on_batches(
                self._operations, "cancel", batches, filters, reason, dry_run=dry_run
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
        **filters: Unpack[FailedFilters],
    ) -> list[ActionResult]: ...
    async def retry(
        self,
        batches: BatchRef | Iterable[BatchRef] | None = None,
        *,
        reason: str,
        dry_run: bool = False,
        **filters: Unpack[FailedFilters],
    ) -> State | list[ActionResult]:
        """Retry FAILED batches: they become PENDING, with all their attempts again.

        Takes a receipt or an id and returns the state; or several of them, or filters, and returns
        one answer per batch. A dry run changes nothing.
        """
        return await self._do(
            batch_actions.act_on_batches(
                self._operations, "retry", batches, filters, reason, dry_run=dry_run
            )
        )

    async def erase(
        self, receipt: Receipt[Any] | UUID, *, reason: str, identity: bool = False
    ) -> State:
        """Delete payload, result and failure details of a finished batch, and their copies.

        `identity` deletes the identity as well. Key, fingerprint and ledger stay.
        """
        return await self._do(
            batch_actions.erase(self._operations, receipt, reason, identity=identity)
        )

    async def claim(
        self,
        worker: str,
        queues: Sequence[Queue[Any, Any] | str],
        n: int = 1,
        free: Mapping[str, Any] | None = None,
        *,
        start: bool = False,
    ) -> list[LeaseRow]:
        """Claim up to `n` leases that fit the `free` resources; with `start` they are RUNNING.

        One call returns at most 16 MiB of payloads.
        """
        return await self._do(self._operations.claim(worker, queues, n, free, start=start))

    async def start(self, worker: str, leases: Iterable[LeaseRow | LeaseRef]) -> list[WriteResult]:
        """Mark leases as RUNNING; returns one answer per lease."""
        return await self._do(self._operations.change_leases("start", worker, leases))

    async def renew(self, worker: str, leases: Iterable[LeaseRow | LeaseRef]) -> list[WriteResult]:
        """Extend leases by the queue's lease length; returns one answer per lease."""
        return await self._do(self._operations.change_leases("renew", worker, leases))

    async def release(
        self, worker: str, leases: Iterable[LeaseRow | LeaseRef]
    ) -> list[WriteResult]:
        """End leases without an outcome: the batches become PENDING, at no cost of an attempt."""
        return await self._do(self._operations.change_leases("release", worker, leases))

    async def settle(
        self, worker: str, settlements: Sequence[Settlement], *, within: W | None = None
    ) -> list[WriteResult]:
        """End attempts; within a caller's transaction, as its last statement."""
        return await self._do(self._operations.settle(worker, settlements, within))

    async def work(self, queues: Queues, **options: Unpack[WorkOptions]) -> WorkSummary:
        """Run the handlers of these queues until stopped or, with `until_idle`, until idle.

        See docs/guides/workers.md.
        """
        from helixqueue.client import run_worker  # noqa: PLC0415 - loaded when used

        return await run_worker.work(self, run_worker.handlers_of(self, queues), options)

    async def _do(self, instructions: Instructions[T]) -> T:
        return await run_instructions_async(instructions, self._backend.perform)
