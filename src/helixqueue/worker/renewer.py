"""The renewer, `python -m helixqueue.worker.renewer`: started by a worker, told by its input.

Lines of JSON in: what is held, what is not any more, which process groups work on what. Lines out:
what was renewed and what was refused. It has no thread and runs no code of anybody's, so it is late
only when the machine is. Its parent's end is the end of its input.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helixqueue.transport.specs import transport_of
from helixqueue.worker.attempt import FENCE_FRACTION, FENCE_LEAST_S
from helixqueue.worker.renewals import Board, held_of

if TYPE_CHECKING:
    from collections.abc import Sequence

LINE_LIMIT = 16 * 1024 * 1024
FENCE_CHECK_S = 0.1


class Renewer:
    def __init__(self) -> None:
        self.board = Board()
        self.groups: dict[int, int] = {}
        self.fences: dict[int, tuple[float, float]] = {}  # by batch: when it ends, how long it is
        self.parent = os.getppid()

    # What the board tells.

    def renewed(self, batches: Sequence[int], asked_at: float) -> None:
        for batch in batches:
            if batch in self.fences:
                lease = self.fences[batch][1]
                self.fences[batch] = (_fence(lease, asked_at), lease)
        _say("renewed", batches, asked_at)

    def refused(self, batch: int, number: int, owner: str | None, state: str | None) -> None:
        self._end_group(batch)
        _say("refused", batch, number, owner, state)

    # What the worker tells.

    async def hear(self, word: str, value: Any) -> None:
        if word == "add":
            for one in value:
                held, lease, since = held_of(one)
                self.board.add(held, lease, since)
                self.fences[held.batch] = (_fence(lease, since), lease)
        elif word == "drop":
            self.board.drop(value)
            for batch in value:
                self.fences.pop(batch, None)
        elif word == "quiet":
            await self.board.quiet([value])
            _say("quiet", value)
        elif word == "group":
            batch, group = value
            if group is None:
                self.groups.pop(batch, None)
            else:
                self.groups[batch] = group

    def is_frozen(self) -> bool:
        """Whether the worker was stopped: then nobody works, and the leases should run out."""
        return _process_state(self.parent) in {"T", "t"}

    async def watch(self) -> None:
        """End the programs of leases that ran out, also while the worker cannot."""
        while True:
            await asyncio.sleep(FENCE_CHECK_S if self.groups else 1.0)
            now = time.monotonic()
            for batch in [b for b in self.groups if self.fences.get(b, (now, 0))[0] < now]:
                if batch in self.fences:
                    self._end_group(batch)

    def end_groups(self) -> None:
        for batch in list(self.groups):
            self._end_group(batch)

    def _end_group(self, batch: int) -> None:
        group = self.groups.pop(batch, None)
        if group is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)


def _fence(lease: float, since: float) -> float:
    return since + lease - max(lease * FENCE_FRACTION, FENCE_LEAST_S)


def _process_state(pid: int) -> str:
    try:
        # The name in parentheses may hold anything.
        return (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
    except OSError:
        if Path("/proc/self").exists():
            return ""
    asked = subprocess.run(  # noqa: S603 - systems without /proc
        ["/bin/ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()[:1]


def _say(*words: object) -> None:
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()


async def main() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=LINE_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    _, spec = json.loads(await lines.readline())
    renewer = Renewer()
    renewer.parent = spec.pop("parent")
    transport = transport_of(spec)
    beat = loop.create_task(renewer.board.beat(transport.renew, renewer, renewer.is_frozen))
    # Without its beat it is of no use: the worker starts another.
    beat.add_done_callback(lambda _: lines.feed_eof())
    watch = loop.create_task(renewer.watch())
    _say("up")
    quiet: set[asyncio.Task[None]] = set()
    word = ""
    while line := await lines.readline():
        word, value = json.loads(line)
        task = loop.create_task(renewer.hear(word, value))
        if word == "quiet":
            quiet.add(task)
            task.add_done_callback(quiet.discard)
        else:
            await task
    if word != "bye" and not beat.done():
        # The worker died: its programs must not go on beside the next attempt.
        renewer.end_groups()
    for task in (beat, watch):
        task.cancel()
    await asyncio.gather(beat, watch, return_exceptions=True)
    await transport.close()


if __name__ == "__main__":
    # It ends when its input does, and not with signals that were sent to everybody around.
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    asyncio.run(main())
