"""Renews leases: `python -m helixqueue.worker.heartbeat_process`, started by a worker.

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

from helixqueue.transport.factory import transport_of
from helixqueue.worker.heartbeat import RenewalSchedule, held_of

if TYPE_CHECKING:
    from collections.abc import Sequence

LINE_LIMIT = 16 * 1024 * 1024
FENCE_CHECK_S = 0.1
TURN_SECONDS = 0.02


class Renewer:
    def __init__(self) -> None:
        self.board = RenewalSchedule()
        self.groups: dict[int, int] = {}
        self.parent = os.getppid()
        self._quieting: set[asyncio.Future[None]] = set()

    # What the board tells.

    def renewed(self, leases: Sequence[tuple[int, int]], asked_at: float) -> None:
        _say("renewed", leases, asked_at)

    def refused(self, batch: int, number: int, owner: str | None, state: str | None) -> None:
        self._end_group(batch)
        _say("refused", batch, number, owner, state)

    # What the worker tells.

    def hear(self, word: str, value: Any) -> None:
        if word == "add":
            for held, lease, since in held_of(value):
                self.board.add(held, lease, since)
        elif word == "drop":
            self.board.drop(value)
        elif word == "quiet":
            asking = asyncio.ensure_future(self._quiet(value))
            self._quieting.add(asking)
            asking.add_done_callback(self._quieting.discard)
        elif word == "group":
            batch, group = value
            if group is None:
                self.groups.pop(batch, None)
            else:
                self.groups[batch] = group

    async def _quiet(self, batch: int) -> None:
        await self.board.quiet([batch])
        _say("quiet", batch)

    def is_frozen(self) -> bool:
        """Whether the worker was stopped: then nobody works, and the leases should run out."""
        return _process_state(self.parent) in {"T", "t"}

    async def watch(self) -> None:
        """End the programs of leases that ran out, also while the worker cannot."""
        while True:
            await asyncio.sleep(FENCE_CHECK_S if self.groups else 1.0)
            now = time.monotonic()
            for batch in list(self.groups):
                entry = self.board.entries.get(batch)
                if entry is not None and entry.fence_at < now:
                    self._end_group(batch)

    def end_groups(self) -> None:
        for batch in list(self.groups):
            self._end_group(batch)

    def _end_group(self, batch: int) -> None:
        group = self.groups.pop(batch, None)
        if group is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)


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


async def listen(
    renewer: Renewer, source: asyncio.ReadTransport, words: asyncio.StreamReader
) -> bool:
    """Until the worker has no more to say; whether it said goodbye.

    A busy worker speaks a thousand times a second. What it holds is nothing urgent: that is heard
    in turns: each line would otherwise wake this process where the worker needs the processor.
    """
    word, rest = "", b""
    while piece := await words.read(LINE_LIMIT):
        *lines, rest = (rest + piece).split(b"\n")
        urgent = True
        for line in lines:
            word, value = json.loads(line)
            renewer.hear(word, value)
            urgent = urgent and word not in {"add", "drop"}
        if not urgent:
            source.pause_reading()
            await asyncio.sleep(TURN_SECONDS)
            source.resume_reading()
    return word == "bye"


async def main() -> None:
    loop = asyncio.get_running_loop()
    words = asyncio.StreamReader(limit=LINE_LIMIT)
    source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
    _, spec = json.loads(await words.readline())
    renewer = Renewer()
    renewer.parent = spec.pop("parent")
    transport = transport_of(spec)
    beat = loop.create_task(renewer.board.beat(transport.renew, renewer, renewer.is_frozen))
    heard = loop.create_task(listen(renewer, source, words))
    watch = loop.create_task(renewer.watch())
    _say("up")
    # Without its beat it is of no use: the worker starts another.
    await asyncio.wait([beat, heard], return_when=asyncio.FIRST_COMPLETED)
    if heard.done() and not heard.result():
        # The worker died: its programs must not go on beside the next attempt.
        renewer.end_groups()
    for task in (beat, heard, watch):
        task.cancel()
    await asyncio.gather(beat, heard, watch, return_exceptions=True)
    await transport.close()


if __name__ == "__main__":
    # It ends when its input does, and not with signals that were sent to everybody around.
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    asyncio.run(main())
    # The worker waits for this end: without taking a hundred modules apart.
    os._exit(0)
