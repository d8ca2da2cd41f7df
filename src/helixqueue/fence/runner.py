"""Performs the steps of a fence's plan: in a thread, and in an event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from helixqueue.fence.protocol import Look, Nest, Step
from helixqueue.operations.steps import Execute, Sleep
from helixqueue.postgres.caller_transaction import run_within, run_within_async, translating

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from helixqueue.fence.protocol import Found
    from helixqueue.postgres.call import Call

T = TypeVar("T")
log = logging.getLogger("helixqueue.fence")


class Run(Protocol):
    """One call, in a transaction of its own or in the caller's."""

    def __call__(self, call: Call[T], /) -> T: ...


class AsyncRun(Protocol):
    def __call__(self, call: Call[T], /) -> Awaitable[T]: ...


class StepRunner:
    """What performs the steps of one block: a client, or the caller's own connection."""

    def __init__(
        self,
        run: Run,
        within: Any = None,  # noqa: ANN401 - told by its class
        probe: Callable[[], object] | None = None,
    ) -> None:
        self._run: Run = run if within is None else partial(run_within, within)
        self._within = within
        self._probe = probe
        self._savepoint: AbstractContextManager[Any] | None = None
        self.found: Callable[[object], Found] = _no_reader

    def __call__(self, step: Step) -> Any:  # noqa: ANN401 - each step has its own answer
        if isinstance(step, Execute):
            return self._run(step.call)
        if isinstance(step, Sleep):
            time.sleep(step.seconds)
            return None
        if isinstance(step, Look):
            return self.found(self._look())
        return self._nest(step)

    def _look(self) -> object:
        try:
            return None if self._probe is None else self._probe()
        except Exception as error:  # noqa: BLE001 - a probe that fails cannot tell
            return error

    def _nest(self, step: Nest) -> bool:
        if step.what == "open":
            with translating():
                self._savepoint = _opener(self._within)()
                self._savepoint.__enter__()
            return True
        assert self._savepoint is not None  # noqa: S101 - opened before
        if step.what == "keep":
            with translating():
                self._savepoint.__exit__(None, None, None)
            return True
        try:
            self._savepoint.__exit__(Undone, Undone(), None)
        except Undone:
            return True
        except Exception as error:  # noqa: BLE001 - whatever a library says of a dead connection
            log.info("fence: the caller's transaction is beyond use: %s", error)
            return False
        return True


class AsyncStepRunner:
    """The same for an event loop."""

    def __init__(
        self,
        run: AsyncRun,
        within: Any = None,  # noqa: ANN401 - told by its class
        probe: Callable[[], Any] | None = None,
    ) -> None:
        self._run: AsyncRun = run if within is None else partial(run_within_async, within)
        self._within = within
        self._probe = probe
        self._savepoint: AbstractAsyncContextManager[Any] | None = None
        self.found: Callable[[object], Found] = _no_reader

    async def __call__(self, step: Step) -> Any:  # noqa: ANN401 - each step has its own answer
        if isinstance(step, Execute):
            return await self._run(step.call)
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, Look):
            return self.found(await self._look())
        return await self._nest(step)

    async def _look(self) -> object:
        try:
            looked = None if self._probe is None else self._probe()
            return await looked if inspect.isawaitable(looked) else looked
        except Exception as error:  # noqa: BLE001 - a probe that fails cannot tell
            return error

    async def _nest(self, step: Nest) -> bool:
        if step.what == "open":
            with translating():
                self._savepoint = _opener(self._within)()
                await self._savepoint.__aenter__()
            return True
        assert self._savepoint is not None  # noqa: S101 - opened before
        if step.what == "keep":
            with translating():
                await self._savepoint.__aexit__(None, None, None)
            return True
        try:
            await self._savepoint.__aexit__(Undone, Undone(), None)
        except Undone:
            return True
        except Exception as error:  # noqa: BLE001 - whatever a library says of a dead connection
            log.info("fence: the caller's transaction is beyond use: %s", error)
            return False
        return True


class Undone(Exception):
    """Tells a savepoint to roll back."""


def _opener(within: Any) -> Callable[[], Any]:  # noqa: ANN401 - told by what it can do
    """What opens a savepoint: `begin_nested` of SQLAlchemy, `transaction` of everybody else."""
    nested: Callable[[], Any] = getattr(within, "begin_nested", None) or within.transaction
    return nested


def _no_reader(_: object) -> Found:  # pragma: no cover - plans look only when told that they can
    raise AssertionError("a plan looked without a probe")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` even while being cancelled: between an effect and its seal nothing may stop."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            value = await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.done():
                raise
            cancelled = error
        else:
            if cancelled is not None:
                raise cancelled
            return value
