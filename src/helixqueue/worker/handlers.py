"""How the work of a queue is done: in the event loop, in a thread, in a process, by a program.

Each way is a coroutine that gives what the handler returned and raises what it raised. Cancelling
it stops the work as far as that is possible: a thread can only be told.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from helixqueue.errors import Refused
from helixqueue.worker.lease import AsyncLease, Lease

if TYPE_CHECKING:
    from helixqueue.queues import Queue, Schema
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.lease import WorkerHandle

Run = Callable[["Attempt", "Schema | None", "WorkerHandle"], Awaitable[Any]]


@dataclass(frozen=True)
class QueueHandler:
    """A queue and how its work is done."""

    name: str
    queue: Queue[Any, Any] | None  # None: by name alone, as programs do
    run: Run
    time_limit: float | None = None

    @property
    def checks_itself(self) -> bool:
        """Whether the declaration says what results look like; else the stored schema does."""
        return self.queue is not None and self.queue.result is not None


def in_the_loop(queue: Queue[Any, Any]) -> Run:
    handler = _handler(queue)

    def run(attempt: Attempt, schema: Schema | None, grip: WorkerHandle) -> Awaitable[Any]:
        return handler(AsyncLease(attempt, queue, schema, grip))  # type: ignore[no-any-return]

    return run


def in_a_thread(queue: Queue[Any, Any]) -> Run:
    handler = _handler(queue)

    async def run(attempt: Attempt, schema: Schema | None, grip: WorkerHandle) -> Any:
        lease: Lease[Any, Any] = Lease(attempt, queue, schema, grip)
        _ = lease.lost  # made here, in the loop's thread, where losing is told
        return await _threaded(lambda: handler(lease))

    return run


def _handler(queue: Queue[Any, Any]) -> Callable[..., Any]:
    if queue.handler_function is None:
        raise Refused(
            f"queue {queue.name} has no handler: write @{queue.name}.handler above the function "
            "that does its work"
        )
    return queue.handler_function


async def _threaded(work: Callable[[], Any]) -> Any:
    """In a thread of its own, that no exit waits for: one that is stuck cannot be ended."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def tell(set_it: Callable[[Any], None], value: object) -> None:
        if not done.done():
            set_it(value)

    def body() -> None:
        try:
            value = context.run(work)
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            told, value = done.set_exception, error
            if isinstance(error, StopIteration):  # which no future can carry
                value = RuntimeError(repr(error))
        else:
            told = done.set_result
        try:
            loop.call_soon_threadsafe(tell, told, value)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    threading.Thread(target=body, name="helix-handler", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError as cancelled:
        cancelled.args = (done,)  # for whoever has to know when the thread is free again
        raise
