"""How the handler of a queue runs: in the event loop or in a thread.

Handlers in processes are in `client.process_pool`, programs in `program`. Each way is a coroutine
that returns what the handler returned and raises what it raised. Cancelling it stops the handler;
a thread cannot be stopped, only notified.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from helixqueue.errors import Refused
from helixqueue.worker.lease import AsyncLease, Lease

if TYPE_CHECKING:
    from helixqueue.queues import Queue
    from helixqueue.schemas import Schema
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.handle import WorkerHandle

Run = Callable[["Attempt", "Schema | None", "WorkerHandle"], Awaitable[Any]]
Close = Callable[[], Awaitable[None]]


async def _has_nothing_to_close() -> None:
    return


@dataclass(slots=True)
class QueueHandler:
    """A queue and how its handler runs."""

    name: str
    queue: Queue[Any, Any] | None  # None: by name only, for programs
    run: Run
    time_limit: float | None = None
    close: Close = _has_nothing_to_close  # awaited when the worker ends
    # Whether the declaration has the result type; else the schema stored with the queue is used.
    declares_result: bool = field(init=False)

    def __post_init__(self) -> None:
        self.declares_result = self.queue is not None and self.queue.result is not None


def run_in_loop(queue: Queue[Any, Any]) -> Run:
    function = _handler_function(queue)

    def run(attempt: Attempt, schema: Schema | None, handle: WorkerHandle) -> Awaitable[Any]:
        return function(AsyncLease(attempt, queue, schema, handle))  # type: ignore[no-any-return]

    return run


def run_in_thread(queue: Queue[Any, Any]) -> Run:
    function = _handler_function(queue)

    async def run(attempt: Attempt, schema: Schema | None, handle: WorkerHandle) -> Any:
        lease: Lease[Any, Any] = Lease(attempt, queue, schema, handle)
        _ = lease.lost  # created in the loop's thread, which sets it
        return await _in_new_thread(lambda: function(lease))

    return run


def _handler_function(queue: Queue[Any, Any]) -> Callable[..., Any]:
    if queue.handler_function is None:
        raise Refused(
            f"queue {queue.name} has no handler: write @{queue.name}.handler above the function "
            "that does its work"
        )
    return queue.handler_function


async def _in_new_thread(work: Callable[[], Any]) -> Any:
    """Run in a daemon thread: a handler that hangs does not block the exit of the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def resolve(set_outcome: Callable[[Any], None], value: object) -> None:
        if not done.done():
            set_outcome(value)

    def body() -> None:
        try:
            value = context.run(work)
        except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
            set_outcome, value = done.set_exception, error
            if isinstance(error, StopIteration):  # a future cannot carry it
                value = RuntimeError(repr(error))
        else:
            set_outcome = done.set_result
        try:
            loop.call_soon_threadsafe(resolve, set_outcome, value)
        except RuntimeError:  # the loop is closed
            return

    threading.Thread(target=body, name="helix-handler", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError as cancelled:
        cancelled.args = (done,)  # the executor waits for the end of the thread
        raise
