"""A program for each event of a feed: an effect outside of the database, behind a fence.

The fence of an event has the name of the feed and the key of the event. The position moves after
the fence is sealed; a crash in between delivers the event again, and the sealed fence skips it. A
crash after the program started leaves the fence in doubt, and the feed stops at that event.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from helixqueue.engine.fences import Times
from helixqueue.errors import HelixError, InDoubt, InProgress
from helixqueue.failpoints import failpoint
from helixqueue.fence.encoding import NotApplied

if TYPE_CHECKING:
    from helixqueue.fence import FenceOptions, Fences
    from helixqueue.ledger.feed import Feed
    from helixqueue.records.ledger import FeedEvent

PAGE: Final = 100
POLL_SECONDS: Final = 0.2
TRY_LATER_SECONDS: Final = 5.0
EX_TEMPFAIL: Final = 75


class ProgramFailed(Exception):
    """The program ended with an error after it had started: its effect is in doubt."""


class TryLater(NotApplied):
    """The program did nothing: its fence is released."""


@dataclass(frozen=True)
class FeedProgram:
    command: Sequence[str]
    stdout: TextIO | None = None  # None: that of this process

    def run(self, event: FeedEvent, feed: str, key: str, wait: Callable[[], None]) -> None:
        """Run to the end; `wait` is called every second meanwhile."""
        with tempfile.TemporaryDirectory(prefix="helix-") as scratch:
            file = Path(scratch) / "event.json"
            file.write_text(json.dumps(_document(event), ensure_ascii=False), encoding="utf-8")
            inherited = {k: v for k, v in os.environ.items() if not k.startswith("HELIX_")}
            names = [event.entity] if isinstance(event.entity, str) else event.entity
            environment = inherited | {
                "HELIX_EVENT": str(file),
                "HELIX_FEED": feed,
                "HELIX_ENTITY": "/".join(names),
                "HELIX_SEQ": str(event.seq),
                "HELIX_KIND": event.kind,
                "HELIX_EVENT_KEY": event.key,
                "HELIX_IDEMPOTENCY_KEY": key,
            }
            try:
                process = subprocess.Popen(  # noqa: S603 - the operator's own command
                    self.command, env=environment, stdin=subprocess.DEVNULL, stdout=self.stdout
                )
            except OSError as error:
                raise TryLater(f"{self.command[0]!a} could not be started: {error}") from error
            while True:
                try:
                    code = process.wait(1.0)
                    break
                except subprocess.TimeoutExpired:
                    wait()
        if code == EX_TEMPFAIL:
            raise TryLater("the program asked to be run again later")
        if code != 0:
            raise ProgramFailed(f"the program ended with exit code {code}")


class FeedRunner:
    """Holds a feed, and runs the program for one event after the other."""

    def __init__(
        self, feed: Feed, fences: Fences, program: FeedProgram, *, lease: float, replayable: bool
    ) -> None:
        self._feed = feed
        self._fences = fences
        self._program = program
        self._lease = lease
        self._options: FenceOptions = {
            "replayable": replayable,
            "ttl": Times(lease=lease, quiet=min(lease, 90.0)),
        }
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"[:255]
        self._held_at = -math.inf
        self.stop = threading.Event()

    def run(self, *, until_idle: bool) -> Iterator[tuple[FeedEvent, bool]]:
        """Yield each event with whether its program ran now; raises `InDoubt` where it stops."""
        waited = 0.0
        try:
            while not self.stop.is_set():
                if not self._hold():
                    # A holder that stopped without a word is lost after its lease.
                    waited = waited or time.monotonic()
                    if until_idle and time.monotonic() - waited > 1.5 * self._lease:
                        raise InProgress(
                            f"feed {self._feed.name}: another process runs it; ask `feed show`",
                            retry_after=self._lease,
                        )
                    self.stop.wait(POLL_SECONDS)
                    continue
                waited = 0.0
                page = self._feed.read(PAGE)
                if not page and until_idle:
                    return
                if not page:
                    self.stop.wait(POLL_SECONDS)
                yield from self._run_page(page)
        finally:
            self._release()

    def _run_page(self, page: list[FeedEvent]) -> Iterator[tuple[FeedEvent, bool]]:
        for event in page:
            if self.stop.is_set() or not self._hold():
                return
            try:
                ran = self._run_event(event)
            except TryLater:
                self.stop.wait(TRY_LATER_SECONDS)
                return
            except InProgress as error:
                # The holder before this one stopped at this event: its lease must expire first.
                self.stop.wait(min(error.retry_after or 1.0, self._lease))
                return
            failpoint("feed.run.sealed")
            if not self._feed.confirm([event]):
                return  # rewound, paused, or moved by another process
            failpoint("feed.run.confirmed")
            yield event, ran

    def _run_event(self, event: FeedEvent) -> bool:
        fence = self._fences.fence(self._feed.name, key=event.key, **self._options)
        held = None
        try:
            with fence as held:
                if held.first:
                    self._program.run(event, self._feed.name, held.downstream_key, self._renew)
                    held.seal({"exit": 0})
        except ProgramFailed as error:
            key = "" if held is None else held.key
            raise InDoubt(
                f"feed {self._feed.name}: {error}, so its effect for {event.entity} seq "
                f"{event.seq} may have happened; decide with `helixq fence resolve {key}`",
                key=key,
            ) from error
        return bool(held.first)

    def _hold(self) -> bool:
        if time.monotonic() - self._held_at < self._lease / 3:
            return True
        held = self._feed.hold(self._holder, self._lease)
        if held:
            self._held_at = time.monotonic()
        return held

    def _renew(self) -> None:
        """Best effort while a program runs: the fence of the event decides."""
        try:
            self._hold()
        except HelixError:
            return

    def _release(self) -> None:
        if self._held_at > -math.inf:
            try:
                self._feed.hold(self._holder, 0.05)
            except HelixError:
                return


def _document(event: FeedEvent) -> dict[str, Any]:
    members = asdict(event)
    del members["position"], members["after"]
    return members | {"at": event.at.isoformat(), "violations": list(event.violations)}
