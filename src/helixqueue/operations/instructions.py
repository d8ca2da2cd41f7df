"""Operations as generators of instructions: run a call, or sleep. A runner does the I/O.

A generator yields an instruction and receives the result; a `HelixError` is thrown into it at the
instruction that failed. Retries, pauses and the meaning of results are written once, for threads
and event loops.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, TypeVar

from helixqueue.errors import HelixError, InProgress, Retryable, Unavailable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
# An instruction: `Execute` and `Sleep`, and further instructions of fences.
S = TypeVar("S")

# Upper bounds of the first pause and of every pause between retries of a transaction. Each pause is
# random from zero (full jitter), so that clients do not retry together.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
# The same for requests while a service is unavailable: about 20 tries in 15 minutes. Each pause is
# at least half of its bound.
OUTAGE_PAUSE_S = 0.5
LONGEST_OUTAGE_PAUSE_S = 60.0


class AnyCall(Protocol[T_co]):
    """A call: a SQL statement (engine/calls.py) or an HTTP request (transport/http)."""

    @property
    def read(self) -> Callable[[Any], T_co]: ...


@dataclass(frozen=True, slots=True)
class Execute:
    """Run a call on a connection of the client, or on `within`."""

    call: Any  # an `AnyCall` of the kind that the runner executes
    within: object = None


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


Instruction = Execute | Sleep
Instructions = Generator[Instruction, Any, T]


def short_pause(tries: int) -> float:
    """Seconds before the next try: of a transaction that met another one."""
    return random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (tries - 1)))  # noqa: S311


def outage_pause(tries: int) -> float:
    """Seconds before the next try, after `tries`: of a request to a service that is unavailable."""
    jitter = random.uniform(0.5, 1)  # noqa: S311
    return jitter * min(LONGEST_OUTAGE_PAUSE_S, OUTAGE_PAUSE_S * 2.0 ** min(tries, 10))


def retried(
    call: AnyCall[T],
    *,
    seconds: float,
    repeatable: bool = True,
    outage: Callable[[int], float] = short_pause,
) -> Instructions[T]:
    """Run a call, and retry it until it succeeds or the time is over.

    The engine recognises repeats, so a call whose result was lost is also retried, unless it is not
    `repeatable`. `outage` is the pause after an answer that did not come.
    """
    deadline = time.monotonic() + seconds
    for tries in count(1):
        try:
            answer: T = yield Execute(call)
        except (Retryable, Unavailable, InProgress) as error:
            pause = (outage if isinstance(error, Unavailable) else short_pause)(tries)
            pause += getattr(error, "retry_after", None) or 0.0
            lost = isinstance(error, Unavailable) and error.outcome_unknown
            if isinstance(error, Unavailable):
                error.repeatable = repeatable
            if (lost and not repeatable) or time.monotonic() + pause > deadline:
                raise
            yield Sleep(pause)
        else:
            return answer
    raise AssertionError("count() does not end")


def run_instructions(instructions: Generator[S, Any, T], perform: Callable[[S], Any]) -> T:
    """Run every instruction in this thread; the generator handles each `HelixError`."""
    answer: Any = None
    failure: HelixError | None = None
    while True:
        try:
            instruction = (
                instructions.send(answer) if failure is None else instructions.throw(failure)
            )
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            answer = failure = None  # an error that leaves refers to this frame
        try:
            answer = perform(instruction)
        except HelixError as error:
            failure = error


async def run_instructions_async(
    instructions: Generator[S, Any, T], perform: Callable[[S], Awaitable[Any]]
) -> T:
    """Run every instruction in an event loop."""
    answer: Any = None
    failure: HelixError | None = None
    while True:
        try:
            instruction = (
                instructions.send(answer) if failure is None else instructions.throw(failure)
            )
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            answer = failure = None  # an error that leaves refers to this frame
        try:
            answer = await perform(instruction)
        except HelixError as error:
            failure = error
