"""Heartbeats: while this process lives, the leases of the fences it holds do not run out.

All fences of a client share one beat, and a beat renews all that are due in one call. A process
that dies or freezes stops beating, and that is the point. A call that hangs past its limit is
renewed no more either: otherwise the others would be told for ever that somebody is at it, and no
probe or person could decide.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from helixqueue.engine import fences
from helixqueue.identity import key_text

if TYPE_CHECKING:
    from helixqueue.engine.fences import FenceLease, Times
    from helixqueue.fence.runner import AsyncRun, Run

log = logging.getLogger("helixqueue.fence")
BEATS_PER_LEASE = 3
_FAILED = "fence: a heartbeat failed (%s); the next one tries again, a lease has room for two"


@dataclass(slots=True)
class Beat:
    """One held fence: when it is due, when it ends (by our clock), and whether it was lost."""

    held: FenceLease
    every: float
    due: float
    ends: float
    lost: bool = False


class _Board:
    """What is held, and what of it is due."""

    def __init__(self) -> None:
        self.beats: dict[int, Beat] = {}

    def add(self, held: FenceLease, times: Times) -> Beat:
        now = time.monotonic()
        every = times.lease / BEATS_PER_LEASE
        beat = Beat(held, every, now + every, now + times.limit)
        self.beats[id(beat)] = beat
        return beat

    def remove(self, beat: Beat) -> None:
        self.beats.pop(id(beat), None)

    def next_due(self) -> float | None:
        return min((beat.due for beat in self.beats.values()), default=None)

    def due(self) -> list[Beat]:
        now = time.monotonic()
        for beat in [beat for beat in self.beats.values() if beat.ends <= now]:
            self.remove(beat)
            log.error(
                "fence %s: its call is past its limit and is renewed no more; it will be in doubt. "
                "If it is slow and does not hang, give it a longer Times(limit=...)",
                key_text(beat.held.key),
            )
        # A little ahead: what is due soon goes with what is due now.
        found = [beat for beat in self.beats.values() if beat.due <= now + beat.every / 4]
        for beat in found:
            beat.due = now + beat.every
        return found


class FenceHeartbeat:
    """Beats in one thread, which ends when nothing is held."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._board = _Board()
        self._changed = threading.Condition()
        self._wakes_at: float | None = None  # None: no thread

    def hold(self, held: FenceLease, times: Times) -> Beat:
        if self._process != os.getpid():
            self._begin()  # a fork takes no threads along, and its parent beats for itself
        with self._changed:
            beat = self._board.add(held, times)
            if self._wakes_at is None:
                self._wakes_at = beat.due
                threading.Thread(target=self._beat, name="helix-fence-pulse", daemon=True).start()
            elif beat.due < self._wakes_at:
                self._changed.notify()
        return beat

    def drop(self, beat: Beat) -> None:
        with self._changed:
            self._board.remove(beat)

    def _beat(self) -> None:
        while True:
            with self._changed:
                self._wakes_at = self._board.next_due()
                if self._wakes_at is None:
                    return
                self._changed.wait(max(0.0, self._wakes_at - time.monotonic()))
                due = self._board.due()
            if due:
                self._renew(due)

    def _renew(self, due: list[Beat]) -> None:
        try:
            lost = self._run(fences.renew([beat.held for beat in due]))
        except Exception as error:  # noqa: BLE001 - one beat that fails must not be the last
            log.warning(_FAILED, error)
            return
        for beat in due:
            beat.lost = beat.held.key in lost


class AsyncFenceHeartbeat:
    """The same for event loops, each with a timer of its own: one loop cannot ring for another."""

    def __init__(self, run: AsyncRun) -> None:
        self._run = run
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopPulse] = WeakKeyDictionary()

    def hold(self, held: FenceLease, times: Times) -> Beat:
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops[loop] = _LoopPulse(self._run)
        return self._loops[loop].hold(held, times)

    def drop(self, beat: Beat) -> None:
        self._loops[asyncio.get_running_loop()].drop(beat)


class _LoopPulse:
    """Beats of one loop, by its timer; no task outlives what it renews."""

    def __init__(self, run: AsyncRun) -> None:
        self._run = run
        self._board = _Board()
        self._timer: asyncio.TimerHandle | None = None
        self._renewals: set[asyncio.Task[None]] = set()

    def hold(self, held: FenceLease, times: Times) -> Beat:
        beat = self._board.add(held, times)
        if self._timer is None or self._timer.when() > self._when(beat):
            self._set_timer()
        return beat

    def drop(self, beat: Beat) -> None:
        self._board.remove(beat)
        if not self._board.beats and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @staticmethod
    def _when(beat: Beat) -> float:
        return asyncio.get_running_loop().time() + beat.due - time.monotonic()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._board.next_due()
        self._timer = None
        if due is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due - time.monotonic()), self._beat)

    def _beat(self) -> None:
        if due := self._board.due():
            task = asyncio.get_running_loop().create_task(self._renew(due))
            self._renewals.add(task)
            task.add_done_callback(self._renewals.discard)
        self._set_timer()

    async def _renew(self, due: list[Beat]) -> None:
        try:
            lost = await self._run(fences.renew([beat.held for beat in due]))
        except Exception as error:  # noqa: BLE001 - as above
            log.warning(_FAILED, error)
            return
        for beat in due:
            beat.lost = beat.held.key in lost
