"""Plans: what to ask and when to pause, as generators. Whoever carries one out does the I/O.

A plan yields a step and is sent the answer; an error of ours is thrown into it at the step that
failed. So everything that needs thought (what may be repeated, how long to wait, what an answer
means) is written once, for threads and for event loops.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from helixqueue.errors import HelixError, InProgress, Retryable, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
# What a plan may yield: our two steps, and for fences a few more.
S = TypeVar("S")

# The longest first and the longest of all pauses between two tries; each is drawn by chance from
# zero on, so that those whom one fault met do not come back together.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class AnyCall(Protocol[T_co]):
    """A call of either kind: a statement (calls.py) or an HTTP request (transport/http)."""

    @property
    def read(self) -> Callable[[Any], T_co]: ...


@dataclass(frozen=True, slots=True)
class Execute:
    """Run a call on a connection of ours, or on `within`."""

    call: Any  # Asked, of the kind that whoever performs it runs
    within: object = None


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


Step = Execute | Sleep
Steps = Generator[Step, Any, T]


def retried(call: AnyCall[T], *, seconds: float, replayable: bool = True) -> Steps[T]:
    """Ask until there is an answer or the time is up.

    The engine recognises repeats, so also a call whose answer was lost is asked again, unless it is
    not `replayable`.
    """
    deadline = time.monotonic() + seconds
    for tries in count():
        try:
            answer: T = yield Execute(call)
        except (Retryable, Unavailable, InProgress) as error:
            pause = random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**tries))  # noqa: S311
            pause += getattr(error, "retry_after", None) or 0.0
            lost = isinstance(error, Unavailable) and error.outcome_unknown
            if (lost and not replayable) or time.monotonic() + pause > deadline:
                raise
            yield Sleep(pause)
        else:
            return answer
    raise AssertionError("count() does not end")


def run_steps(plan: Generator[S, Any, T], perform: Callable[[S], Any]) -> T:
    """Perform every step in this thread; errors of ours are the plan's to judge."""
    answer: Any = None
    failure: HelixError | None = None
    while True:
        try:
            step = plan.send(answer) if failure is None else plan.throw(failure)
        except StopIteration as done:
            result: T = done.value
            return result
        answer = failure = None
        try:
            answer = perform(step)
        except HelixError as error:
            failure = error


async def run_steps_async(plan: Generator[S, Any, T], perform: Callable[[S], Awaitable[Any]]) -> T:
    """The same in an event loop."""
    answer: Any = None
    failure: HelixError | None = None
    while True:
        try:
            step = plan.send(answer) if failure is None else plan.throw(failure)
        except StopIteration as done:
            result: T = done.value
            return result
        answer = failure = None
        try:
            answer = await perform(step)
        except HelixError as error:
            failure = error
