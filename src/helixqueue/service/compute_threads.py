"""Threads for work that would hold the event loop: large bodies, and schemas of high cost.

Parsing and checking one mebibyte of JSON takes up to a second of Python. In a thread it shares the
interpreter with the event loop, which then waits for milliseconds. Tenants take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from helixqueue.errors import HelixError
from helixqueue.postgres.fairness import FairSemaphore
from helixqueue.service.costs import MAX_LOOP_MICROSECONDS, cost_of

T = TypeVar("T")
S = TypeVar("S")
# One per tenant as long as two tenants compute. More would share the interpreter with the event
# loop, which waits for all of them.
THREADS: Final = 2
# How long a thread keeps the interpreter while the event loop waits for it; Python's default is
# five times as long.
SWITCH_SECONDS: Final = 0.001


def is_large(body: bytes) -> bool:
    """Whether reading a body, or preparing what is in it, would hold the event loop."""
    return cost_of(body) > MAX_LOOP_MICROSECONDS


class ComputeThreads:
    def __init__(self) -> None:
        self._permits = FairSemaphore(THREADS)
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="compute")

    async def run(self, tenant: str | None, function: Callable[..., T], *arguments: Any) -> T:  # noqa: ANN401 - of the function
        await self._permits.acquire(tenant)
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, partial(function, *arguments))
        future.add_done_callback(partial(self._release, tenant))
        try:
            # A thread cannot be cancelled: it keeps its permit to the end.
            return await asyncio.shield(future)
        finally:
            # An error refers to this frame. If the frame referred to the error, a refused body
            # would stay until a garbage collection.
            del future, arguments

    async def run_if_large(
        self,
        body: bytes,
        tenant: str | None,
        function: Callable[..., T],
        *arguments: Any,  # noqa: ANN401 - of the function
    ) -> T:
        """Run a function of a request body; in the event loop, if the body is small."""
        if not is_large(body):
            return function(*arguments)
        return await self.run(tenant, function, *arguments)

    def _release(self, tenant: str | None, future: asyncio.Future[Any]) -> None:
        self._permits.release(tenant)
        if not future.cancelled():
            future.exception()  # retrieved: the request may be gone

    async def run_instructions(
        self,
        tenant: str,
        instructions: Generator[S, Any, T],
        perform: Callable[[S], Awaitable[Any]],
    ) -> T:
        """Run an operation: what it computes in threads, its instructions in the event loop."""
        answer: Any = None
        failure: HelixError | None = None
        while True:
            try:
                is_done, value = await self.run(tenant, _advance, instructions, answer, failure)
            finally:
                answer = failure = None
            if is_done:
                result: T = value
                return result
            try:
                answer = await perform(value)
            except HelixError as error:
                failure = error

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


def _advance(
    instructions: Generator[S, Any, T], answer: object, failure: HelixError | None
) -> tuple[bool, Any]:
    """The next instruction, or the result; StopIteration cannot leave a thread."""
    try:
        return False, instructions.send(answer) if failure is None else instructions.throw(failure)
    except StopIteration as done:
        return True, done.value
    finally:
        del failure
