"""`helix.work`: a worker for the queues of a client, in this process.

The worker runs in an event loop. `HelixQueue.work` runs one in this thread, or in another thread if
this thread already has an event loop, as in a notebook.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from helixqueue.client.backend import backend_of
from helixqueue.client.sync_client import SyncClient
from helixqueue.errors import Refused
from helixqueue.queues import Queue
from helixqueue.worker import handlers
from helixqueue.worker.handlers import QueueHandler
from helixqueue.worker.options import WorkerOptions
from helixqueue.worker.worker import Worker

if TYPE_CHECKING:
    from helixqueue.client.async_client import AsyncClient
    from helixqueue.worker.health import WorkSummary
    from helixqueue.worker.options import WorkOptions

AnyClient: TypeAlias = "SyncClient[Any] | AsyncClient[Any]"
Queues = Queue[Any, Any] | list[Queue[Any, Any]] | tuple[Queue[Any, Any], ...]


def handlers_of(client: AnyClient, queues: Queues) -> dict[str, QueueHandler]:
    """The handler of each declared queue, by name."""
    return {queue.name: _handler_of(client, queue) for queue in _as_list(queues)}


def _handler_of(client: AnyClient, queue: Queue[Any, Any]) -> QueueHandler:
    limit = queue.time_limit_seconds
    if queue.run_in == "process":
        from helixqueue.client import process_pool  # noqa: PLC0415 - rarely used

        pool = process_pool.HandlerProcessPool(queue, client)
        return QueueHandler(queue.name, queue, pool.run, limit, pool.close)
    run_in = handlers.run_in_loop if queue.handler_is_async else handlers.run_in_thread
    return QueueHandler(queue.name, queue, run_in(queue), limit)


def _as_list(queues: Queues) -> Sequence[Queue[Any, Any]]:
    declared = [queues] if isinstance(queues, Queue) else list(queues)
    if not declared or not all(isinstance(queue, Queue) for queue in declared):
        raise Refused(f"work: expected declared queues, got {queues!r}")
    return declared


@overload
def work(
    client: SyncClient[Any], by_queue: dict[str, QueueHandler], options: WorkOptions
) -> WorkSummary: ...
@overload
def work(
    client: AsyncClient[Any], by_queue: dict[str, QueueHandler], options: WorkOptions
) -> Awaitable[WorkSummary]: ...
def work(
    client: AnyClient, by_queue: dict[str, QueueHandler], options: WorkOptions
) -> WorkSummary | Awaitable[WorkSummary]:
    """Work until nothing is left or the worker is stopped; returns what was done."""
    checked = WorkerOptions(**options)
    if checked.device_pool is not None:
        _demand_processes(by_queue)
    if isinstance(client, SyncClient):
        return _work(client, by_queue, checked)
    return _work_async(client, by_queue, checked)


def _demand_processes(by_queue: dict[str, QueueHandler]) -> None:
    """A lost lease must end what uses its devices, and a thread cannot be ended."""
    for handler in by_queue.values():
        if handler.queue is not None and handler.queue.run_in != "process":
            raise Refused(
                f"queue {handler.name}: expected a handler in a process for a worker with devices; "
                'declare the queue with run_in="process", or use --exec'
            )


def _work(
    client: SyncClient[Any], by_queue: dict[str, QueueHandler], options: WorkerOptions
) -> WorkSummary:
    backend = backend_of(client)
    for queue in _queues_to_declare(by_queue, options):
        backend.declare(queue)

    async def run() -> WorkSummary:
        async with async_version(client) as async_client:
            transport = backend.transport(options)
            worker = Worker(transport, by_queue, options, client.submit, async_client.submit)
            with _handling_signals(worker):
                return await worker.run()

    return run_coroutine(run)


def _queues_to_declare(
    by_queue: dict[str, QueueHandler], options: WorkerOptions
) -> list[Queue[Any, Any] | str]:
    """The queues to create or check; a queue by name may belong to another tenant."""
    queues = [handler.queue or handler.name for handler in by_queue.values()]
    return [queue for queue in queues if isinstance(queue, Queue) or not options.all_tenants]


@contextlib.asynccontextmanager
async def async_version(client: SyncClient[Any]) -> AsyncIterator[AsyncClient[Any]]:
    """The same client for event loops: `async def` handlers submit with it."""
    async_client = backend_of(client).async_client()
    try:
        yield async_client
    finally:
        await backend_of(async_client).disconnect()


async def _work_async(
    client: AsyncClient[Any], by_queue: dict[str, QueueHandler], options: WorkerOptions
) -> WorkSummary:
    """Work in this event loop; cancelling it releases the leases."""
    backend = backend_of(client)
    for queue in _queues_to_declare(by_queue, options):
        await backend.declare(queue)
    sync_client = backend.sync_client()
    # In a thread: an embedded server may take seconds to start.
    transport = await asyncio.to_thread(backend.transport, options)
    worker = Worker(transport, by_queue, options, sync_client.submit, client.submit)
    try:
        return await worker.run()
    finally:
        backend_of(sync_client).disconnect()


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
