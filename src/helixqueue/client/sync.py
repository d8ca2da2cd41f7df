"""`HelixQueue`: the client for threads."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from helixqueue.client import submitting
from helixqueue.client.answers import Submission
from helixqueue.client.desk import Desk, Which
from helixqueue.client.home import Embedded, Home, Server
from helixqueue.client.settings import Chosen
from helixqueue.store.database import Database
from helixqueue.store.plans import Pause, Plan, Step, carry_out
from helixqueue.store.pool import Pool
from helixqueue.store.within import run_within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path
    from uuid import UUID

    from helixqueue.client.answers import Accepted, Options, Submitted
    from helixqueue.client.settings import Settings
    from helixqueue.client.working import Queues
    from helixqueue.fence import Fence, Fences
    from helixqueue.fence import Options as FenceOptions
    from helixqueue.queues import Queue
    from helixqueue.states import State
    from helixqueue.store.calls import Call
    from helixqueue.store.read_rows import BatchRow, EventRow
    from helixqueue.store.rows import Answer, Held, LeaseRow, Receipt, Settlement
    from helixqueue.worker.health import Summary
    from helixqueue.worker.options import WorkOptions

T = TypeVar("T")
P = TypeVar("P")
R = TypeVar("R")


class HelixQueue:
    """A client of one database and one tenant; threads share it, a forked child may go on using it.

    ```python
    with HelixQueue("postgresql://app@db/lab", tenant="lab") as helix:
        helix.submit(basecall, identity="sample-1", payload=Basecall(pod5="a.pod5"))
    ```
    """

    def __init__(
        self, dsn: str | Embedded, tenant: str = "default", **settings: Unpack[Settings]
    ) -> None:
        chosen = Chosen.of(settings)
        self.origin, self.settings = (dsn, tenant), settings
        self._chosen = chosen
        home: Home = dsn if isinstance(dsn, Embedded) else Server(dsn)
        self._home = home
        self._desk = Desk(
            tenant=tenant, actor=chosen.actor, patience_seconds=chosen.patience_seconds
        )
        self._pool = Pool(
            lambda: Database.connect(home.open(), **chosen.connection(tenant)),
            size=chosen.connections,
            wait_seconds=chosen.wait_seconds,
        )

    @classmethod
    def embedded(
        cls, directory: str | Path, tenant: str = "default", **settings: Unpack[Settings]
    ) -> Self:
        """A client of a PostgreSQL in `directory`: created, started or joined when first used."""
        return cls(Embedded(directory), tenant, **settings)

    def close(self) -> None:
        """Close the connections and leave the embedded servers; closing twice is closing once."""
        self._pool.close()
        self._home.close()

    def __enter__(self) -> Self:
        self._home.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def submit(
        self,
        queue: Queue[P, R],
        *,
        identity: str | tuple[str, ...] | None,
        payload: P | Mapping[str, Any],
        create: bool = False,
        within: object = None,
        **options: Unpack[Options],
    ) -> Accepted[R]: ...
    @overload
    def submit(
        self,
        queue: str,
        *,
        identity: str | tuple[str, ...] | None,
        payload: Any,
        create: bool = False,
        within: object = None,
        **options: Unpack[Options],
    ) -> Accepted[Any]: ...
    def submit(
        self,
        queue: Queue[Any, Any] | str,
        *,
        identity: str | tuple[str, ...] | None,
        payload: Any,
        create: bool = False,
        within: object = None,
        **options: Unpack[Options],
    ) -> Accepted[Any]:
        """Submit work once, however often this is called: new or duplicate, with equal receipts.

        Raises `Conflict` for another payload than the identity stands for, and the named error for
        what is refused. With `within`, it commits or vanishes with the caller's transaction.
        """
        one = Submission(identity, payload, **options)
        return self._do(submitting.submit(self._desk, queue, one, create=create, within=within))

    @overload
    def submit_many(
        self,
        queue: Queue[Any, R],
        submissions: Iterable[Submission | Mapping[str, Any]],
        *,
        create: bool = False,
        within: object = None,
    ) -> list[Submitted[R]]: ...
    @overload
    def submit_many(
        self,
        queue: str,
        submissions: Iterable[Submission | Mapping[str, Any]],
        *,
        create: bool = False,
        within: object = None,
    ) -> list[Submitted[Any]]: ...
    def submit_many(
        self,
        queue: Queue[Any, Any] | str,
        submissions: Iterable[Submission | Mapping[str, Any]],
        *,
        create: bool = False,
        within: object = None,
    ) -> list[Submitted[Any]]:
        """Submit any number, in chunks of 10,000; the answers come in the order of the input.

        A row that is refused or conflicts says so in its answer and hinders no other. Should the
        database go away half-way, submit all of it again: what is there answers as a duplicate.
        """
        return self._do(
            submitting.submit_many(self._desk, queue, submissions, create=create, within=within)
        )

    def state(self, receipt: Receipt[Any] | UUID) -> State:
        """Where the batch stands now."""
        return self._do(self._desk.state(receipt))

    def wait(self, receipt: Receipt[Any] | UUID, timeout: float | None = None) -> State:
        """Wait until the batch is COMPLETED, FAILED or CANCELLED; `InProgress` after `timeout`."""
        return self._do(self._desk.wait(receipt, timeout))

    @overload
    def result(self, receipt: Receipt[R], queue: None = None) -> R: ...
    @overload
    def result(self, receipt: Receipt[Any] | UUID, queue: Queue[Any, R]) -> R: ...
    @overload
    def result(self, receipt: UUID, queue: None = None) -> Any: ...
    def result(self, receipt: Which, queue: Queue[Any, Any] | None = None) -> Any:
        """The result, typed if this client has used the declared queue or is given it.

        Raises `InProgress` before the end, `NoResult` after another end than COMPLETED.
        """
        return self._do(self._desk.result(receipt, queue))

    def history(self, receipt: Receipt[Any] | UUID) -> list[EventRow]:
        """Every step of the batch, from the ledger."""
        return self._do(self._desk.history(receipt))

    def batches(
        self,
        *,
        queue: Queue[Any, Any] | str | None = None,
        state: State | str | None = None,
        identity: str | tuple[str, ...] | None = None,
        worker: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterator[BatchRow]:
        """The tenant's batches, newest first; an identity may come in any spelling."""
        after: str | None = None
        while True:
            page = self._do(
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
            yield from page.rows
            after = page.next
            if after is None:
                return

    def cancel(self, receipt: Receipt[Any] | UUID, *, reason: str) -> State:
        """Give the batch up, also while it runs: its worker's token dies."""
        return self._do(self._desk.decide("cancel", receipt, reason))

    def retry(self, receipt: Receipt[Any] | UUID, *, reason: str) -> State:
        """FAILED becomes PENDING, with all tries anew."""
        return self._do(self._desk.decide("retry", receipt, reason))

    def erase(self, receipt: Receipt[Any] | UUID, *, reason: str) -> State:
        """Empty payload and result of a finished batch; fingerprint and ledger stay."""
        return self._do(self._desk.decide("erase", receipt, reason))

    def claim(
        self,
        worker: str,
        queues: Sequence[Queue[Any, Any] | str],
        n: int = 1,
        free: Mapping[str, Any] | None = None,
        *,
        start: bool = False,
    ) -> list[LeaseRow]:
        """Take up to `n` leases that fit what is `free`; with `start` they are RUNNING at once."""
        return self._do(self._desk.claim(worker, queues, n, free, start=start))

    def start(self, worker: str, leases: Iterable[LeaseRow | Held]) -> list[Answer]:
        return self._do(self._desk.hold("start", worker, leases))

    def renew(self, worker: str, leases: Iterable[LeaseRow | Held]) -> list[Answer]:
        return self._do(self._desk.hold("renew", worker, leases))

    def release(self, worker: str, leases: Iterable[LeaseRow | Held]) -> list[Answer]:
        return self._do(self._desk.hold("release", worker, leases))

    def settle(
        self, worker: str, settlements: Sequence[Settlement], *, within: object = None
    ) -> list[Answer]:
        """End attempts; within a caller's transaction this is its last statement."""
        return self._do(self._desk.settle(worker, settlements, within))

    def work(self, queues: Queues, **options: Unpack[WorkOptions]) -> Summary:
        """Do the work of these queues, by their handlers, until stopped or (`until_idle`) done.

        See docs/guides/workers.md.
        """
        from helixqueue.client import working  # noqa: PLC0415 - loaded when used

        return working.work(self, working.jobs_of(self, queues), options)

    def fence(self, name: str, key: object, **options: Unpack[FenceOptions]) -> Fence:
        """Let an effect of yours take place once: a decorator, and a context manager.

        `key` are business fields that name the effect, or a function of the arguments that gives
        them. See docs/guides/fences.md.
        """
        return self.fences.fence(name, key, **options)

    @cached_property
    def fences(self) -> Fences:
        """What makes the fences of this client, and counts for metrics."""
        from helixqueue.fence import Fences  # noqa: PLC0415 - loaded when used

        return Fences(self._run, self._desk.tenant, self._desk.actor)

    # For workers.

    def know(self, queue: Queue[Any, Any] | str) -> None:
        """Make sure that the queue is there, as it was declared."""
        self._do(self._desk.known(queue))

    def run(self, call: Call[T]) -> T:
        """One call of the store's, on a connection of this client's."""
        return self._run(call)

    def reach(self) -> tuple[str, str, Chosen]:
        """Where the database is and how to connect to it."""
        return self._home.open(), self._desk.tenant, self._chosen

    def disconnect(self) -> None:
        """Close the connections, and leave the servers to others of this process."""
        self._pool.close()

    def _run(self, call: Call[T]) -> T:
        with self._pool.database() as database:
            return database.run(call)

    def _do(self, plan: Plan[T]) -> T:
        return carry_out(plan, self._perform)

    def _perform(self, step: Step) -> Any:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        if step.within is not None:
            return run_within(step.within, step.call)
        return self._run(step.call)
