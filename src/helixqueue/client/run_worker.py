"""`helix.work`: a worker for a client's queues, in this process.

The worker is an event loop's; `HelixQueue.work` runs one in this thread until the work is done, or
in another where this thread has one already, as a notebook does.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from helixqueue.client.sync_client import BaseClient
from helixqueue.errors import Refused
from helixqueue.queues import Queue
from helixqueue.transport.operation_log import told
from helixqueue.worker import handlers
from helixqueue.worker.handlers import QueueHandler
from helixqueue.worker.options import WorkerOptions
from helixqueue.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence

    from helixqueue.client.async_client import AsyncBaseClient
    from helixqueue.worker.health import WorkSummary
    from helixqueue.worker.options import WorkOptions

AnyClient: TypeAlias = "BaseClient | AsyncBaseClient"
Queues = Queue[Any, Any] | list[Queue[Any, Any]] | tuple[Queue[Any, Any], ...]


def jobs_of(client: AnyClient, queues: Queues) -> dict[str, QueueHandler]:
    """Each declared queue with its handler, as it says."""
    jobs = {}
    for queue in listed(queues):
        if queue.run_in == "process":
            from helixqueue.client.process_pool import in_a_process  # noqa: PLC0415 - few need it

            run = in_a_process(queue, client)
        else:
            how = handlers.in_the_loop if queue.handler_is_async else handlers.in_a_thread
            run = how(queue)
        jobs[queue.name] = QueueHandler(queue.name, queue, run, queue.time_limit_seconds)
    return jobs


def listed(queues: Queues) -> Sequence[Queue[Any, Any]]:
    found = [queues] if isinstance(queues, Queue) else list(queues)
    if not found or not all(isinstance(one, Queue) for one in found):
        raise Refused(f"work: expected declared queues, got {queues!r}")
    return found


@overload
def work(
    client: BaseClient, jobs: dict[str, QueueHandler], options: WorkOptions
) -> WorkSummary: ...
@overload
def work(
    client: AsyncBaseClient, jobs: dict[str, QueueHandler], options: WorkOptions
) -> Awaitable[WorkSummary]: ...
def work(
    client: AnyClient, jobs: dict[str, QueueHandler], options: WorkOptions
) -> WorkSummary | Awaitable[WorkSummary]:
    """Until it is done or told to stop; gives a word on what was done."""
    made = WorkerOptions(**options)
    if isinstance(client, BaseClient):
        return _work(client, jobs, made)
    return _work_async(client, jobs, made)


def _work(client: BaseClient, jobs: dict[str, QueueHandler], options: WorkerOptions) -> WorkSummary:
    for job in jobs.values():
        client.know(job.queue or job.name)

    async def run() -> WorkSummary:
        async with twin_of(client) as twin:
            transport = told(client.transport(options))
            worker = Worker(transport, jobs, options, client.submit, twin.submit)
            with _obeying(worker):
                return await worker.run()

    return in_a_loop(run)


@contextlib.asynccontextmanager
async def twin_of(client: BaseClient) -> AsyncIterator[AsyncBaseClient]:
    """The same client for coroutines, whose handlers submit too."""
    twin = client.twin()
    try:
        yield twin
    finally:
        await twin.disconnect()


async def _work_async(
    client: AsyncBaseClient, jobs: dict[str, QueueHandler], options: WorkerOptions
) -> WorkSummary:
    """In this event loop; cancelling it gives back what is held."""
    for job in jobs.values():
        await client.know(job.queue or job.name)
    twin = client.twin()
    # Embedded servers may take seconds to start; other tasks go on meanwhile.
    transport = told(await asyncio.to_thread(client.transport, options))
    worker = Worker(transport, jobs, options, twin.submit, client.submit)
    try:
        return await worker.run()
    finally:
        twin.disconnect()


def in_a_loop(run: Callable[[], Coroutine[Any, Any, WorkSummary]]) -> WorkSummary:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run())
    found: list[WorkSummary] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            found.append(asyncio.run(run()))
        except BaseException as error:  # noqa: BLE001 - raised below
            failure.append(error)

    thread = threading.Thread(target=body, name="helix-worker")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return found[0]


@contextlib.contextmanager
def _obeying(worker: Worker) -> Iterator[None]:
    """SIGTERM and SIGINT stop the worker; a second one gives back at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(one) for one in signals]
    for one in signals:
        loop.add_signal_handler(one, worker.stop)
    try:
        yield
    finally:
        for one, earlier in zip(signals, before, strict=True):
            loop.remove_signal_handler(one)
            signal.signal(one, earlier)
