"""Renewing leases: what is held, what is due, and a process that does it whatever the handlers do.

A handler that holds the interpreter's lock stops every thread and every event loop of its process,
so renewals happen in another one (`renewer`). That one watches its parent: a worker that was
stopped or has died is not renewed, because nobody works there. See docs/decisions/0018-workers.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from helixqueue.errors import HelixError
from helixqueue.transport.protocol import LeaseRef, Token, WriteResult
from helixqueue.worker.attempt import margin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from helixqueue.transport.protocol import LeaseRow

LOG = logging.getLogger("helixqueue.worker")
BEATS_PER_LEASE = 3
LONGEST_BEAT_S = 15.0  # so that a cancelled batch's worker hears of it soon
TRIES_PER_BEAT = 4  # how soon a renewal that failed is tried again
CHUNK = 500
QUIET_SECONDS = 2.0  # how long a settle waits for a renewal that is under way
# What was settled is said a little later, many in one line: quick work is over long before it would
# be renewed for the first time.
DROP_SECONDS = 0.03
RESTART_SECONDS = 0.5
NO_BATCH = 0
TURNS_TO_HEAR = 5
START_SECONDS = 15.0  # to wait for it; a machine that is slower than that works all the same


@dataclass(slots=True)
class RenewalEntry:
    held: LeaseRef
    lease_seconds: float
    since: float  # when it was claimed or renewed the last time, at the latest
    every: float
    due: float

    @property
    def fence_at(self) -> float:
        """When whoever works on it has to stop, unless it is renewed before."""
        return self.since + self.lease_seconds - margin(self.lease_seconds)


class HeartbeatListener(Protocol):
    """Who is told how it went."""

    def renewed(self, leases: Sequence[tuple[int, int]], asked_at: float) -> None:
        """By batch and token number: a batch may have come back under another one meanwhile."""

    def refused(self, batch: int, number: int, owner: str | None, state: str | None) -> None: ...


class RenewalSchedule:
    """What is held, and when each is due. A batch is here once: under its latest token."""

    def __init__(self) -> None:
        self.entries: dict[int, RenewalEntry] = {}
        self._under_way: set[int] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._sooner = asyncio.Event()
        self._looks_at = 0.0

    def add(self, held: LeaseRef, lease_seconds: float, since: float) -> None:
        every = min(lease_seconds / BEATS_PER_LEASE, LONGEST_BEAT_S)
        entry = self.entries[held.batch] = RenewalEntry(
            held, lease_seconds, since, every, since + every
        )
        if entry.due < self._looks_at:
            self._sooner.set()

    def drop(self, batches: Iterable[int]) -> None:
        for batch in batches:
            self.entries.pop(batch, None)

    async def quiet(self, batches: Sequence[int]) -> None:
        """Drop them, and return when no renewal of them is under way."""
        self.drop(batches)
        while self._under_way.intersection(batches):
            await self._idle.wait()

    async def beat(
        self,
        renew: Callable[[Sequence[LeaseRef]], Awaitable[list[WriteResult]]],
        told: HeartbeatListener,
        is_frozen: Callable[[], bool] = lambda: False,
    ) -> None:
        """For ever: renew what is due, in one call."""
        while True:
            due = await self._due()
            now = time.monotonic()
            if is_frozen():
                self._again(due, now)
                continue
            self._under_way.update(entry.held.batch for entry in due)
            self._idle.clear()
            try:
                answers = await renew([entry.held for entry in due])
            except HelixError as error:
                LOG.warning("%d leases could not be renewed: %s", len(due), error)
                self._again(due, now)
            else:
                self._note(due, answers, told, now)
            finally:
                self._under_way.clear()
                self._idle.set()

    async def _due(self) -> list[RenewalEntry]:
        while True:
            self._sooner.clear()
            now = time.monotonic()
            # A little ahead: what is due soon goes with what is due now.
            due = [one for one in self.entries.values() if one.due <= now + one.every / 8]
            if due:
                return due[:CHUNK]
            self._looks_at = min((one.due for one in self.entries.values()), default=now + 3600)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.005, self._looks_at - now)):
                    await self._sooner.wait()

    @staticmethod
    def _again(due: list[RenewalEntry], now: float) -> None:
        for entry in due:
            entry.due = now + entry.every / TRIES_PER_BEAT

    def _note(
        self,
        due: list[RenewalEntry],
        answers: list[WriteResult],
        told: HeartbeatListener,
        asked_at: float,
    ) -> None:
        asked = {entry.held.batch: entry for entry in due}
        renewed = []
        for answer in answers:
            entry = asked[answer.batch]
            if answer.answer == "ok":
                entry.since, entry.due = asked_at, asked_at + entry.every
                renewed.append((answer.batch, entry.held.token.number))
            elif answer.answer == "busy":
                # Somebody has the row this moment, a settle of ours perhaps.
                entry.due = asked_at + entry.every / TRIES_PER_BEAT
            else:
                if self.entries.get(answer.batch) is entry:
                    del self.entries[answer.batch]
                told.refused(answer.batch, entry.held.token.number, answer.owner, answer.state)
        if renewed:
            told.renewed(renewed, asked_at)


class Heartbeat:
    """The renewer process, as its worker sees it: started again if it dies."""

    def __init__(self, spec: Callable[[], dict[str, Any]], told: HeartbeatListener) -> None:
        self._spec = spec
        self._told = told
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._held: dict[int, tuple[LeaseRow, float]] = {}  # what a new renewer has to know
        self._groups: dict[int, int] = {}
        self._asked: dict[int, asyncio.Future[None]] = {}
        self._dropped: list[int] = []  # to be said in one line
        self._up = asyncio.Event()

    async def start(self) -> None:
        """Before anything is claimed: a handler that holds the interpreter must find it there."""
        self._keeper = asyncio.create_task(self._keep())
        with suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                await self._up.wait()

    def add(self, rows: Sequence[LeaseRow], since: float) -> None:
        self._say_dropped()  # before: a batch may come back under another token
        self._held.update((row.batch, (row, since)) for row in rows)
        self._say("add", _told(rows, since))

    def drop(self, batch: int) -> None:
        self._held.pop(batch, None)
        if not self._dropped:
            asyncio.get_running_loop().call_later(DROP_SECONDS, self._say_dropped)
        self._dropped.append(batch)

    def drop_lease(self, row: LeaseRow) -> None:
        """Drop it unless its batch came back under another token meanwhile."""
        held = self._held.get(row.batch)
        if held is not None and held[0] is row:
            self.drop(row.batch)

    def _say_dropped(self) -> None:
        if self._dropped:
            self._say("drop", self._dropped)
            self._dropped = []

    async def quiet(self, batch: int, seconds: float = QUIET_SECONDS) -> None:
        """No renewal of it is under way from here on, or the renewer does not answer in time."""
        self._held.pop(batch, None)
        if self._process is None:
            return
        done = self._asked[batch] = asyncio.get_running_loop().create_future()
        self._say("quiet", batch)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await done
        self._asked.pop(batch, None)

    async def catch_up(self, seconds: float) -> None:
        """Hear everything that the renewer has said until now."""
        await self.quiet(NO_BATCH, seconds)
        # A loop that was held up finds time and words together, and the time is over first.
        for _ in range(TURNS_TO_HEAR):
            await asyncio.sleep(0)

    def group(self, batch: int, group: int | None) -> None:
        """The process group that works on a batch; it ends with its lease, or with this process."""
        if group is None:
            self._groups.pop(batch, None)
        else:
            self._groups[batch] = group
        self._say("group", [batch, group])

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._process is not None and self._process.stdin is not None:
            self._say("bye", None)
            self._process.stdin.close()
            await self._process.wait()

    def _say(self, word: str, value: object) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps([word, value]).encode() + b"\n")

    async def _keep(self) -> None:
        while True:
            try:
                await self._start()
                await self._hear()
                LOG.warning("the renewer ended; starting another")
            except OSError as error:
                LOG.warning("the renewer could not be started: %s", error)
            self._process = None
            self._up.clear()
            await asyncio.sleep(RESTART_SECONDS)

    async def _start(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "helixqueue.worker.heartbeat_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Signals meant for the worker's group are the worker's to obey.
            start_new_session=True,
        )
        self._process = process
        self._say("spec", self._spec() | {"parent": os.getpid()})
        for row, since in self._held.values():
            self._say("add", _told([row], since))
        for batch, group in self._groups.items():
            self._say("group", [batch, group])

    async def _hear(self) -> None:
        if self._process is None or self._process.stdout is None:
            return
        while line := await self._process.stdout.readline():
            word, *values = json.loads(line)
            if word == "up":
                self._up.set()
            elif word == "renewed":
                self._told.renewed(*values)
            elif word == "refused":
                self._told.refused(*values)
            elif (done := self._asked.get(values[0])) is not None and not done.done():
                done.set_result(None)
        await self._process.wait()


def _told(rows: Sequence[LeaseRow], since: float) -> list[list[Any]]:
    """Leases in the words of a line; those of one claim share a token.

    The renewer belongs to the worker and renews all of them in one call, so it gets the claim's.
    """
    alike: dict[tuple[Token, float], list[int]] = {}
    for row in rows:
        alike.setdefault((row.token, row.lease_seconds), []).append(row.batch)
    return [[token, seconds, since, batches] for (token, seconds), batches in alike.items()]


def held_of(told: list[list[Any]]) -> Iterator[tuple[LeaseRef, float, float]]:
    """A line's words as held leases, how long each is and since when."""
    for token, lease_seconds, since, batches in told:
        shared = Token(*token)
        for batch in batches:
            yield LeaseRef(batch, shared), lease_seconds, since
