"""What clients and commands do with runs in several calls: submit one, and wait for its end."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

from helixqueue.errors import InProgress, Refused
from helixqueue.failpoints import failpoint
from helixqueue.operations import runs
from helixqueue.operations.chunks import chunks
from helixqueue.operations.instructions import Instructions, Sleep
from helixqueue.records.run import ENDED, RunDetail, RunProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from helixqueue.operations.batches import Operations

PAGE_DATUMS: Final = 2_000  # of one call
LONGEST_LOOK_S: Final = 2.0


def submit_run(
    operations: Operations,
    *,
    read: Callable[[int], Iterator[Mapping[str, Any]]],
    progress: Callable[[int], None] = lambda _: None,
    **start: Any,
) -> Instructions[RunProgress]:
    """Start a run and append its datums: `read(n)` yields them from number n on.

    Every step may be repeated, so an interrupted start continues where it was.
    """
    begun = yield from runs.start_run(operations, **start)
    current = begun
    failpoint("run.started")
    room = operations.call_set.chunk_chars
    pages = chunks(map(dict, read(begun.appended)), _size, size=room, length=PAGE_DATUMS)
    while current.state == "expanding":
        page = next(pages, None)
        if page is None:
            raise Refused(f"expected {start['datums']} datums, got {current.appended}")
        current = yield from runs.append_run(
            operations, begun.name, first=current.appended, datums=page
        )
        failpoint("run.appended")
        progress(current.appended)
    return RunProgress(begun.run, begun.name, current.state, current.appended, begun.is_new)


def wait_run(
    operations: Operations, run: str, timeout: float | None = None
) -> Instructions[RunDetail]:
    """Wait until a run has ended: every batch, and its output files have their final names."""
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    pause = 0.1
    while True:
        found = yield from runs.show_run(operations, run)
        if found.state in ENDED:
            return found
        if found.blocked is not None and found.pending + found.running == 0:
            raise Refused(f"output files of run {found.name} are blocked: {found.blocked}")
        left = deadline - time.monotonic()
        if left <= 0:
            raise InProgress(
                f"run {found.name} is {found.state}, {found.ended} of {found.datums} datums ended, "
                f"and it did not end in {timeout} s; wait again",
                retry_after=LONGEST_LOOK_S,
            )
        yield Sleep(min(pause, left))
        pause = min(pause * 1.5, LONGEST_LOOK_S)


def _size(datum: Mapping[str, Any]) -> int:
    """Characters of its JSON, about."""
    return (
        64
        + len(datum["name"])
        + sum(32 + len(item["uri"]) + len(item["path"]) for item in datum["inputs"])
    )
