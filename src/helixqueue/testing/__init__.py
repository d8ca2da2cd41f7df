"""For the tests of programs that use HelixQueue: real work on a real database, in this process.

```python
helix.submit(basecall, identity="s1", payload={"pod5": "a"})
testing.assert_submitted(helix, basecall, identity="s1", payload={"pod5": "a"})
testing.drain(helix, basecall)
```

`drain` runs handlers until no batch can be claimed, without a heartbeat and without prefetching.
`leased` returns a lease, to call a handler directly. `expire` ends that lease; `freeze` lets
another worker complete the batch meanwhile. The pytest plugin (`helixqueue.testing.plugin`) has the
fixtures `helix` and `helix_dsn`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from helixqueue.client import run_worker
from helixqueue.client.backend import backend_of
from helixqueue.errors import HelixError
from helixqueue.records.lease import LeaseRef
from helixqueue.worker.attempt import Attempt
from helixqueue.worker.lease import Lease
from helixqueue.worker.options import WorkerOptions
from helixqueue.worker.worker import Worker

if TYPE_CHECKING:
    from helixqueue.client.sync import HelixQueue
    from helixqueue.queues import Queue
    from helixqueue.records.batch import BatchRow
    from helixqueue.transport.protocol import Transport
    from helixqueue.worker.health import WorkSummary

__all__ = ["assert_submitted", "drain", "expire", "freeze", "leased"]


def drain(helix: HelixQueue, *queues: Queue[Any, Any]) -> WorkSummary:
    """Do all the work of these queues that can be claimed now, one batch at a time."""
    jobs = run_worker.handlers_of(helix, queues)
    for queue in queues:
        backend_of(helix).declare(queue)

    async def run() -> WorkSummary:
        options = WorkerOptions(slots=1, until_idle=True, prefetch=1)
        async with run_worker.async_version(helix) as async_client:
            transport = backend_of(helix).transport(options)
            worker = Worker(
                transport, jobs, options, helix.submit, async_client.submit, renews=False
            )
            return await worker.run()

    return run_worker.run_coroutine(run)


def assert_submitted(
    helix: HelixQueue,
    queue: Queue[Any, Any] | str,
    *,
    identity: str | tuple[str, ...],
    payload: Any = ...,
    count: int = 1,
) -> BatchRow:
    """The batch of that identity, in any spelling and with that payload, if given; the newest.

    `count` are all of them: more than one if it has revisions.
    """
    found = list(helix.batches(queue=queue, identity=identity))
    name = queue if isinstance(queue, str) else queue.name
    assert len(found) == count, (  # noqa: S101 - that is what it is for
        f"expected {count} batches of {identity!r} in {name}, found {len(found)}"
    )
    if payload is not ...:
        shape = None if isinstance(queue, str) else queue.payload
        wanted = payload if shape is None else shape.to_json(payload)
        stored = helix.batch(found[0], payload=True).payload
        assert stored == wanted, (  # noqa: S101
            f"expected the payload {wanted!r} for {identity!r}, found {stored!r}"
        )
    return found[0]


@contextlib.contextmanager
def leased(helix: HelixQueue, queue: Queue[Any, Any]) -> Iterator[Lease[Any, Any]]:
    """A lease on the next batch of the queue, for calling its `def` handler by hand.

    What the handler returns is not settled; what it does in `lease.transaction()` is. Afterwards
    the batch is given back, unless it ended.
    """
    backend_of(helix).declare(queue)
    options = WorkerOptions(slots=1)
    [*rows] = helix.claim(options.worker, [queue], start=True)
    if not rows:
        raise HelixError(f"expected work in queue {queue.name}, found none that can be claimed")
    [row] = rows
    transport = backend_of(helix).transport(options)
    attempt = Attempt(row, time.monotonic())
    try:
        yield Lease(attempt, queue, None, _Hand(helix, transport))
    finally:
        if attempt.settled_as is None and attempt.stop_kind is None:
            helix.release(options.worker, [row])
        asyncio.run(transport.close())


def expire(helix: HelixQueue, lease: Lease[Any, Any]) -> None:
    """The lease is gone, and its holder has not heard of it: whatever it writes is refused."""
    row = lease.held
    helix.release(lease.worker, [LeaseRef(row.batch, row.token)])


@contextlib.contextmanager
def freeze(
    helix: HelixQueue, queue: Queue[Any, Any], lease: Lease[Any, Any]
) -> Iterator[Lease[Any, Any]]:
    """The lease's holder is frozen past its end: inside, another worker has the batch, by this."""
    expire(helix, lease)
    with leased(helix, queue) as other:
        if other.batch_id != lease.batch_id:
            raise HelixError(
                f"expected batch {lease.batch_id} next in queue {queue.name}, got "
                f"{other.batch_id}: freeze while it is the most urgent one"
            )
        yield other


class _Hand:
    """A worker that does nothing by itself."""

    async_transactions = None

    def __init__(self, helix: HelixQueue, transport: Transport) -> None:
        self.worker = transport.worker
        self.transactions = transport.transactions
        self.submit = helix.submit

    async def submit_async(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("a lease for a `def` handler submits without await")

    def set_process_group(self, attempt: Attempt, group: int | None) -> None:
        """Nothing is killed here."""

    def pause_renewal(self, attempt: Attempt, *, always: bool = False) -> None:
        """Nothing is renewed here."""

    async def pause_renewal_async(self, attempt: Attempt, *, always: bool = False) -> None:
        """Nor here."""

    def resume_renewal(self, attempt: Attempt) -> None:
        """Nor here."""

    def stop_renewal(self, attempt: Attempt) -> None:
        """Nor here."""

    def stage_outputs(self, attempt: Attempt) -> None:
        """No file is published here."""

    async def stage_outputs_async(self, attempt: Attempt) -> None:
        """Nor here."""
