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

from helixqueue.errors import Refused
from helixqueue.queues import Queue
from helixqueue.transport.direct import Direct
from helixqueue.worker import handlers
from helixqueue.worker.handlers import Job
from helixqueue.worker.options import Options
from helixqueue.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence

    from helixqueue.client.asynchronous import AsyncHelixQueue
    from helixqueue.client.settings import Chosen
    from helixqueue.client.sync import HelixQueue
    from helixqueue.worker.health import Summary
    from helixqueue.worker.options import WorkOptions

Client: TypeAlias = "HelixQueue | AsyncHelixQueue"
Queues = Queue[Any, Any] | list[Queue[Any, Any]] | tuple[Queue[Any, Any], ...]
# Beside the rounds: saying hello, looking a schema up, giving back.
MORE_CONNECTIONS = 2


def jobs_of(client: Client, queues: Queues) -> dict[str, Job]:
    """Each declared queue with its handler, as it says."""
    jobs = {}
    for queue in listed(queues):
        if queue.run_in == "process":
            from helixqueue.client.children import in_a_process  # noqa: PLC0415 - few need it

            run = in_a_process(queue, client)
        else:
            how = handlers.in_the_loop if queue.handler_is_async else handlers.in_a_thread
            run = how(queue)
        jobs[queue.name] = Job(queue.name, queue, run, queue.time_limit_seconds)
    return jobs


def listed(queues: Queues) -> Sequence[Queue[Any, Any]]:
    found = [queues] if isinstance(queues, Queue) else list(queues)
    if not found or not all(isinstance(one, Queue) for one in found):
        raise Refused(f"work: expected declared queues, got {queues!r}")
    return found


def worker_of(
    reached: tuple[str, str, Chosen],
    jobs: dict[str, Job],
    options: Options,
    submit: Callable[..., Any],
    submit_async: Callable[..., Any],
    *,
    renews: bool = True,
) -> Worker:
    dsn, tenant, chosen = reached
    transport = Direct(
        dsn,
        worker=options.worker,
        connections=options.rounds + MORE_CONNECTIONS,
        handlers=options.slots,
        options=chosen.connection(tenant),
    )
    return Worker(transport, jobs, options, submit, submit_async, renews=renews)


@overload
def work(client: HelixQueue, jobs: dict[str, Job], options: WorkOptions) -> Summary: ...
@overload
def work(
    client: AsyncHelixQueue, jobs: dict[str, Job], options: WorkOptions
) -> Awaitable[Summary]: ...
def work(
    client: Client, jobs: dict[str, Job], options: WorkOptions
) -> Summary | Awaitable[Summary]:
    """Until it is done or told to stop; gives a word on what was done."""
    from helixqueue.client.sync import HelixQueue  # noqa: PLC0415 - which imports this

    made = Options(**options)
    if isinstance(client, HelixQueue):
        return _work(client, jobs, made)
    return _work_async(client, jobs, made)


def _work(client: HelixQueue, jobs: dict[str, Job], options: Options) -> Summary:
    for job in jobs.values():
        client.know(job.queue or job.name)

    async def run() -> Summary:
        async with twin_of(client) as twin:
            worker = worker_of(client.reach(), jobs, options, client.submit, twin.submit)
            with _obeying(worker):
                return await worker.run()

    return in_a_loop(run)


@contextlib.asynccontextmanager
async def twin_of(client: HelixQueue) -> AsyncIterator[AsyncHelixQueue]:
    """The same client for coroutines, whose handlers submit too."""
    from helixqueue.client.asynchronous import AsyncHelixQueue  # noqa: PLC0415 - its twin

    twin = AsyncHelixQueue(*client.origin, **client.settings)
    try:
        yield twin
    finally:
        await twin.disconnect()


async def _work_async(client: AsyncHelixQueue, jobs: dict[str, Job], options: Options) -> Summary:
    """In this event loop; cancelling it gives back what is held."""
    from helixqueue.client.sync import HelixQueue  # noqa: PLC0415 - its twin

    for job in jobs.values():
        await client.know(job.queue or job.name)
    twin = HelixQueue(*client.origin, **client.settings)
    reached = await asyncio.to_thread(client.reach)
    worker = worker_of(reached, jobs, options, twin.submit, client.submit)
    try:
        return await worker.run()
    finally:
        twin.disconnect()


def in_a_loop(run: Callable[[], Coroutine[Any, Any, Summary]]) -> Summary:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(run())
    found: list[Summary] = []
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
