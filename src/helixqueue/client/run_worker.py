"""`helix.work`: a worker for the queues of a client, in this process.

The worker runs in an event loop. `HelixQueue.work` runs one in this thread, or in another thread if
this thread already has an event loop, as in a notebook.
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
from helixqueue.transport.operation_log import with_operation_log
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


def handlers_of(client: AnyClient, queues: Queues) -> dict[str, QueueHandler]:
    """The handler of each declared queue, by name."""
    by_queue = {}
    for queue in _as_list(queues):
        if queue.run_in == "process":
            from helixqueue.client.process_pool import run_in_process  # noqa: PLC0415 - rarely used

            run = run_in_process(queue, client)
        else:
            run_in = handlers.run_in_loop if queue.handler_is_async else handlers.run_in_thread
            run = run_in(queue)
        by_queue[queue.name] = QueueHandler(queue.name, queue, run, queue.time_limit_seconds)
    return by_queue


def _as_list(queues: Queues) -> Sequence[Queue[Any, Any]]:
    declared = [queues] if isinstance(queues, Queue) else list(queues)
    if not declared or not all(isinstance(queue, Queue) for queue in declared):
        raise Refused(f"work: expected declared queues, got {queues!r}")
    return declared


@overload
def work(
    client: BaseClient, by_queue: dict[str, QueueHandler], options: WorkOptions
) -> WorkSummary: ...
@overload
def work(
    client: AsyncBaseClient, by_queue: dict[str, QueueHandler], options: WorkOptions
) -> Awaitable[WorkSummary]: ...
def work(
    client: AnyClient, by_queue: dict[str, QueueHandler], options: WorkOptions
) -> WorkSummary | Awaitable[WorkSummary]:
    """Work until nothing is left or the worker is stopped; returns what was done."""
    checked = WorkerOptions(**options)
    if isinstance(client, BaseClient):
        return _work(client, by_queue, checked)
    return _work_async(client, by_queue, checked)


def _work(
    client: BaseClient, by_queue: dict[str, QueueHandler], options: WorkerOptions
) -> WorkSummary:
    for handler in by_queue.values():
        client.know(handler.queue or handler.name)

    async def run() -> WorkSummary:
        async with async_twin(client) as twin:
            transport = with_operation_log(client.transport(options))
            worker = Worker(transport, by_queue, options, client.submit, twin.submit)
            with _handling_signals(worker):
                return await worker.run()

    return run_coroutine(run)


@contextlib.asynccontextmanager
async def async_twin(client: BaseClient) -> AsyncIterator[AsyncBaseClient]:
    """The async twin of a client: `async def` handlers submit with it."""
    twin = client.twin()
    try:
        yield twin
    finally:
        await twin.disconnect()


async def _work_async(
    client: AsyncBaseClient, by_queue: dict[str, QueueHandler], options: WorkerOptions
) -> WorkSummary:
    """Work in this event loop; cancelling it releases the leases."""
    for handler in by_queue.values():
        await client.know(handler.queue or handler.name)
    twin = client.twin()
    # In a thread: an embedded server may take seconds to start.
    transport = with_operation_log(await asyncio.to_thread(client.transport, options))
    worker = Worker(transport, by_queue, options, twin.submit, client.submit)
    try:
        return await worker.run()
    finally:
        twin.disconnect()


def run_coroutine(run: Callable[[], Coroutine[Any, Any, WorkSummary]]) -> WorkSummary:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run())
    summary: list[WorkSummary] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            summary.append(asyncio.run(run()))
        except BaseException as error:  # noqa: BLE001 - raised below
            failure.append(error)

    thread = threading.Thread(target=body, name="helix-worker")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return summary[0]


@contextlib.contextmanager
def _handling_signals(worker: Worker) -> Iterator[None]:
    """SIGTERM and SIGINT stop the worker; a second signal releases its leases at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    previous = [signal.getsignal(number) for number in signals]
    for number in signals:
        loop.add_signal_handler(number, worker.stop)
    try:
        yield
    finally:
        for number, handler in zip(signals, previous, strict=True):
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
