"""Processes that run beside the service: started, started again when they die, stopped together."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

STOP_SECONDS: Final = 15.0
SETTLED_SECONDS: Final = 10.0  # one that lived so long is started again at once
SLOWEST_SECONDS: Final = 30.0


@dataclass
class SupervisedProcess:
    """One process of ours; `module` is run by `helixqueue.parent_watch`."""

    name: str
    module: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold a password
    code: int | None = None  # what it last ended with
    _process: asyncio.subprocess.Process | None = field(default=None, repr=False)

    async def keep(self, say: Callable[[str], None]) -> None:
        """Run it for ever; ever more slowly if it does not live."""
        pause = 0.5
        while True:
            began = time.monotonic()
            what = await self._run()
            if time.monotonic() - began > SETTLED_SECONDS:
                pause = 0.5
            say(f"{self.name} {what}; starting it again in {pause:g} s")
            await asyncio.sleep(pause)
            pause = min(pause * 2, SLOWEST_SECONDS)

    async def _run(self) -> str:
        """Once, from its start to its end; what is to be said of that."""
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "helixqueue.parent_watch", self.module, *self.arguments),
                stdin=asyncio.subprocess.PIPE,
                env={**os.environ, **self.environment},
                # Ctrl-C is for us: we stop them in order, while the database is there.
                start_new_session=True,
            )
        except OSError as error:  # no process, no memory, no file left: there may be one later
            return f"did not start ({(error.strerror or str(error)).lower()})"
        self.code = await process.wait()
        return f"ended with {self.code}"

    async def stop(self) -> None:
        """Ask it to finish; past its time, end it and all that it started."""
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


class Processes:
    """All of them."""

    def __init__(self, children: Sequence[SupervisedProcess], say: Callable[[str], None]) -> None:
        self._children = children
        self._say = say
        self._keepers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._keepers = [asyncio.create_task(child.keep(self._say)) for child in self._children]

    async def stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(child.stop() for child in self._children))
