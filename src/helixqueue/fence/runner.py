# Generated from runner_async.py by `make twins`: change that file.
"""Performs the instructions of a fenced call in the calling thread."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from helixqueue.fence.protocol import CompareRequests, Instruction, RunProbe, Savepoint, Undo
from helixqueue.operations.instructions import Execute, Sleep, run_instructions
from helixqueue.postgres.caller_transaction import run_within, translating

if TYPE_CHECKING:
    from helixqueue.fence.protocol import ProbeFinding
    from helixqueue.postgres.call import Call

T = TypeVar("T")
log = logging.getLogger("helixqueue.fence")
# Longer requests are compared in a thread: up to here it takes at most 30 ms.
MAX_LOOP_CHARS: Final = 32 * 1024


class Run(Protocol):
    """Runs one call, in a transaction of its own or in the caller's."""

    def __call__(self, call: Call[T], /) -> T: ...


class InstructionRunner:
    """Performs the instructions of one call on a client, or on the caller's connection.

    `read_probe` turns what the probe returned, or the exception it raised, into a finding.
    """

    def __init__(
        self,
        run: Run,
        read_probe: Callable[[object], ProbeFinding],
        within: Any = None,  # noqa: ANN401 - any connection that submit takes
        probe: Callable[[], Any] | None = None,
    ) -> None:
        self._run: Run = run if within is None else partial(run_within, within)
        self._read_probe = read_probe
        self._within = within
        self._probe = probe
        self._savepoint: AbstractContextManager[Any] | None = None

    def __call__(self, instruction: Instruction) -> Any:  # noqa: ANN401 - each instruction has its own reply
        if isinstance(instruction, Execute):
            return self._run(instruction.call)
        if isinstance(instruction, Sleep):
            return time.sleep(instruction.seconds)
        if isinstance(instruction, RunProbe):
            return self._read_probe(self._run_probe())
        if isinstance(instruction, CompareRequests):
            if len(instruction.first or "") + len(instruction.received) > MAX_LOOP_CHARS:
                return instruction.changes()
            return instruction.changes()
        return self._perform_savepoint(instruction)

    def finish(self, instructions: Generator[Instruction, Any, T]) -> T:
        """Run the instructions to their end: a seal must follow its effect."""
        return run_instructions(instructions, self)

    def _run_probe(self) -> object:
        try:
            found = None if self._probe is None else self._probe()
            if inspect.isawaitable(found):
                return found
        except Exception as error:  # noqa: BLE001 - a failed probe has found nothing
            return error
        return found

    def _perform_savepoint(self, instruction: Savepoint) -> bool:
        if instruction.action == "open":
            with translating():
                self._savepoint = _open_savepoint(self._within)
                self._savepoint.__enter__()
            return True
        assert self._savepoint is not None  # noqa: S101 - opened before
        if instruction.action == "keep":
            with translating():
                self._savepoint.__exit__(None, None, None)
            return True
        try:
            self._savepoint.__exit__(Undo, Undo(), None)
        except Undo:
            return True
        except Exception as error:  # noqa: BLE001 - any driver's error of a dead connection
            log.info("fence: the caller's transaction is not usable any more: %s", error)
            return False
        return True


def _open_savepoint(within: Any) -> Any:  # noqa: ANN401 - of any driver
    """`begin_nested` of SQLAlchemy, `transaction` of psycopg and asyncpg."""
    nested = getattr(within, "begin_nested", None) or within.transaction
    return nested()
