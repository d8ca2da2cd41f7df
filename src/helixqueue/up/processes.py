"""Supervised processes beside the service: started, restarted when they end, stopped together."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

STOP_SECONDS: Final = 15.0
SETTLED_SECONDS: Final = 10.0  # a process that ran this long restarts without extra delay
MAX_PAUSE_SECONDS: Final = 30.0
LINE_BYTES: Final = 1 << 20
REST_SECONDS: Final = 1.0


@dataclass
class SupervisedProcess:
    """A child process; `helixqueue.parent_watch` runs `module` and ends it with its parent."""

    name: str
    module: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(
        default_factory=dict, repr=False
    )  # may contain a password
    output: Callable[[str | None], None] | None = None  # takes its lines, and None at their end
    code: int | None = None  # exit code of the last run
    _process: asyncio.subprocess.Process | None = field(default=None, repr=False)
    _reading: asyncio.Task[None] | None = field(default=None, repr=False)

    async def supervise(self, progress: Callable[[str], None]) -> None:
        """Run the process until cancelled; restart it with increasing pauses."""
        pause = 0.5
        while True:
            started = time.monotonic()
            outcome = await self._run()
            if time.monotonic() - started > SETTLED_SECONDS:
                pause = 0.5
            progress(f"{self.name} {outcome}; restarting in {pause:g} s")
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE_SECONDS)

    async def _run(self) -> str:
        """Run the process once and describe how it ended."""
        pipes: dict[str, Any] = {}
        if self.output is not None:
            pipes = {"stdout": PIPE, "stderr": STDOUT, "limit": LINE_BYTES}
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "helixqueue.parent_watch", self.module, *self.arguments),
                stdin=asyncio.subprocess.PIPE,
                env={**os.environ, **self.environment},
                # Ctrl-C must reach this process only: it stops children while the database runs.
                start_new_session=True,
                **pipes,
            )
        except OSError as error:  # no process, memory or file handle left: a retry may work
            return f"did not start ({(error.strerror or str(error)).lower()})"
        # Not cancelled with this task: what the process prints while it stops is read, too.
        self._reading = asyncio.create_task(self._read(process.stdout))
        self.code = await process.wait()
        await self._read_rest()
        return f"exited with code {self.code}"

    async def _read(self, stream: asyncio.StreamReader | None) -> None:
        if stream is None or self.output is None:
            return
        more = True
        while more:
            try:
                line = await stream.readline()
            except ValueError:  # longer than LINE_BYTES; the rest of it is another line
                continue
            more = bool(line)
            self.output(line.decode(errors="backslashreplace").rstrip() if more else None)

    async def _read_rest(self) -> None:
        """What is left in the pipe, which a program that survives the process may hold open."""
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=REST_SECONDS)

    async def stop(self) -> None:
        """Send SIGTERM; after `STOP_SECONDS`, kill the process and its children."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                self.code = await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            self.code = await process.wait()
        await self._read_rest()


class Processes:
    """The supervised processes, started and stopped together."""

    def __init__(
        self, children: Sequence[SupervisedProcess], progress: Callable[[str], None]
    ) -> None:
        self._children = children
        self._progress = progress
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(child.supervise(self._progress)) for child in self._children
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(child.stop() for child in self._children))
