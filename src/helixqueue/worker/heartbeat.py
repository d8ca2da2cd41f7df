"""The heartbeat of a worker: a child process that renews its leases.

A handler that holds the interpreter lock stops every thread and event loop of its process, so
renewals are sent from another process (`heartbeat_process`), which gets the leases over a pipe. See
docs/decisions/0018-workers.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from helixqueue.records.lease import LeaseRow, SealedToken, Token

LOG = logging.getLogger("helixqueue.worker")
PAUSE_SECONDS = 2.0  # how long a settlement waits for a renewal in flight
# Dropped leases are sent with a delay, many in one message: quick work ends long before its first
# renewal.
DROP_SECONDS = 0.03
RESTART_SECONDS = 0.5
START_SECONDS = 15.0  # a worker starts without its heartbeat after that
NO_BATCH = 0
LOOP_PASSES_TO_READ = 5


class HeartbeatListener(Protocol):
    def renewed(self, leases: Sequence[tuple[int, int | str]], sent_at: float) -> None:
        """By batch and token number: the batch may be held under another token meanwhile."""

    def refused(
        self, batch: int, number: int | str, owner: str | None, state: str | None
    ) -> None: ...


class Heartbeat:
    """The heartbeat process as its worker sees it. It is restarted if it ends."""

    def __init__(self, spec: Callable[[], dict[str, Any]], listener: HeartbeatListener) -> None:
        self._spec = spec
        self._listener = listener
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._held: dict[int, tuple[LeaseRow, float]] = {}  # sent again to a new process
        self._groups: dict[int, int] = {}
        self._pauses: dict[int, asyncio.Future[None]] = {}
        self._dropped: list[int] = []  # not sent yet
        self._started = asyncio.Event()

    async def start(self) -> None:
        """Wait for the process before anything is claimed: a handler may hold the lock at once."""
        self._supervisor = asyncio.create_task(self._supervise())
        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                await self._started.wait()

    def add(self, rows: Sequence[LeaseRow], claimed_at: float) -> None:
        self._send_dropped()  # first: a batch may come back under another token
        for row in rows:
            self._held[row.batch] = (row, claimed_at)
        self._send("add", _encode_leases(rows, claimed_at))

    def drop(self, batches: Sequence[int]) -> None:
        for batch in batches:
            self._held.pop(batch, None)
        if batches and not self._dropped:
            asyncio.get_running_loop().call_later(DROP_SECONDS, self._send_dropped)
        self._dropped += batches

    def drop_lease(self, row: LeaseRow) -> None:
        """Drop a lease unless its batch is held under another token meanwhile."""
        held = self._held.get(row.batch)
        if held is not None and held[0] is row:
            self.drop([row.batch])

    async def pause(self, batch: int, seconds: float = PAUSE_SECONDS) -> None:
        """Return when no renewal of the batch is in flight, or after `seconds`."""
        self._held.pop(batch, None)
        if self._process is None:
            return
        paused = self._pauses[batch] = asyncio.get_running_loop().create_future()
        self._send("pause", batch)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await paused
        self._pauses.pop(batch, None)

    async def catch_up(self, seconds: float) -> None:
        """Process every report that the heartbeat process has sent until now."""
        await self.pause(NO_BATCH, seconds)
        # After the loop was blocked, the timeout fires before the pipe is read.
        for _ in range(LOOP_PASSES_TO_READ):
            await asyncio.sleep(0)

    def set_process_group(self, batch: int, group: int | None) -> None:
        """The process group of a batch, which is killed with its lease or with this process."""
        if group is None:
            self._groups.pop(batch, None)
        else:
            self._groups[batch] = group
        self._send("group", [batch, group])

    async def close(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._process is not None and self._process.stdin is not None:
            self._send("close", None)
            self._process.stdin.close()
            await self._process.wait()

    def _send_dropped(self) -> None:
        if self._dropped:
            self._send("drop", self._dropped)
            self._dropped = []

    def _send(self, kind: str, value: object) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps([kind, value]).encode() + b"\n")

    async def _supervise(self) -> None:
        while True:
            try:
                await self._start_process()
                await self._read_reports()
                LOG.warning("the heartbeat process ended; starting another")
            except OSError as error:
                LOG.warning("the heartbeat process could not be started: %s", error)
            self._process = None
            self._started.clear()
            await asyncio.sleep(RESTART_SECONDS)

    async def _start_process(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "helixqueue.worker.heartbeat_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # The worker alone handles signals that are sent to its process group.
            start_new_session=True,
        )
        self._send("spec", self._spec() | {"parent": os.getpid()})
        for row, claimed_at in self._held.values():
            self._send("add", _encode_leases([row], claimed_at))
        for batch, group in self._groups.items():
            self._send("group", [batch, group])

    async def _read_reports(self) -> None:
        if self._process is None or self._process.stdout is None:
            return
        while line := await self._process.stdout.readline():
            kind, *values = json.loads(line)
            if kind == "started":
                self._started.set()
            elif kind == "renewed":
                self._listener.renewed(*values)
            elif kind == "refused":
                self._listener.refused(*values)
            elif (paused := self._pauses.get(values[0])) is not None and not paused.done():
                paused.set_result(None)
        await self._process.wait()


def _encode_leases(rows: Sequence[LeaseRow], claimed_at: float) -> list[list[Any]]:
    """Leases as JSON values, grouped by token.

    The heartbeat process belongs to the worker and renews all leases of a claim in one call, so it
    gets the token of the claim.
    """
    groups: dict[tuple[Token | SealedToken, float], list[Any]] = {}
    for row in rows:
        token, seconds = row.token, row.lease_seconds
        group = groups.setdefault((token, seconds), [token, seconds, claimed_at, []])
        group[-1].append(row.batch)
    return list(groups.values())
