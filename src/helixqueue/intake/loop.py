"""The loop of an intake: read, commit, acknowledge.

An entry is acknowledged only after the transaction that decided about it has committed. Whatever
happens before leaves it pending, and it is delivered again; the engine recognises the repeat.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from helixqueue.engine import letters
from helixqueue.errors import HelixError, NotPermitted, Retryable, SchemaMismatch, Unavailable
from helixqueue.failpoints import failpoint
from helixqueue.intake.chunk import ChunkWriter
from helixqueue.intake.figures import IntakeCounters, StreamSnapshot
from helixqueue.intake.stream import Claimed, Entry, RedisUnavailable, StreamConsumer
from helixqueue.operations.chunks import chunks

if TYPE_CHECKING:
    import threading

    from helixqueue.intake.settings import IntakeSettings

T = TypeVar("T")
LOG = logging.getLogger("helixqueue.intake")
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 5.0
STOP_SECONDS: Final = 5.0  # for acknowledgements after a stop
CHUNK_BYTES: Final = 8 * 1024 * 1024  # of one transaction
# An entry that was delivered so often is processed alone: it may be what ends the process.
SUSPECT_DELIVERIES: Final = 3
RETRIES_ALONE: Final = 10
UPKEEP_SECONDS: Final = 60.0
# The database is away, or not ready for this program: nothing is said about the entries.
OUTAGE: Final = (Unavailable, Retryable, SchemaMismatch, NotPermitted)


class Intake:
    """Reads one stream as one consumer until `stop` is set."""

    def __init__(
        self, settings: IntakeSettings, dsn: Callable[[], str], stop: threading.Event
    ) -> None:
        self.settings = settings
        self.counters = IntakeCounters()
        self.snapshot: StreamSnapshot | None = None
        self.problem: str | None = None
        self._stop = stop
        self._stream = StreamConsumer(settings)
        self._writer = ChunkWriter(settings, dsn)
        self._started_at = datetime.now(UTC)
        self._unacknowledged: list[str] = []
        self._claim_at = self._report_at = self._upkeep_at = 0.0
        self._failures = 0
        self._idle = False
        self._xack_failures = 0  # that are not counted in the database

    def run(self, *, until_idle: bool = False) -> None:
        """Run until `stop` or, with `until_idle`, until a read finds nothing.

        The chunk in hand is finished and acknowledged.
        """
        try:
            while not self._stop.is_set() and not self._succeeds(self._start):
                pass
            while not self._stop.is_set():
                if self._succeeds(self._step) and until_idle and self._idle:
                    break
            self._finish()
        finally:
            self._report(ended=True)
            self.close()

    def close(self) -> None:
        self._stream.close()
        self._writer.close()

    # Instructions.

    def _start(self) -> None:
        self._writer.check_schema()
        self._stream.create_group(first=not self._writer.knows_group())
        self._look()  # stored before the first read: from then on the group is known
        after = "0"
        while not self._stop.is_set():
            found = self._stream.read_own(after)
            if not found.entries and not found.vanished:
                return
            self._take(found)
            self._acknowledge()
            after = found.next

    def _step(self) -> None:
        self._acknowledge()
        now = time.monotonic()
        if now >= self._report_at:
            self._report_at = now + self.settings.report
            self._look()
            self._report()
        if now >= self._upkeep_at:
            self._upkeep_at = now + UPKEEP_SECONDS
            self._upkeep()
        if now >= self._claim_at:
            self._claim_all()
            self._claim_at = time.monotonic() + min(self.settings.idle / 4, 10.0)
        entries = self._stream.read_new()
        self._idle = not entries
        if entries:
            failpoint("intake.read")
            self._process(entries)
            self._acknowledge()

    def _claim_all(self) -> None:
        start = "0-0"
        while not self._stop.is_set():
            found = self._stream.claim(start)
            self.counters.claimed += len(found.entries)
            self._take(found)
            self._acknowledge()
            if found.next == "0-0" and not found.vanished:
                return
            start = found.next

    def _upkeep(self) -> None:
        self._stream.forget_consumers(self.settings.forget_consumers)
        if self.settings.trim:
            self.counters.trimmed += self._stream.trim()

    def _finish(self) -> None:
        """Acknowledge what is committed, for a limited time: a redelivery is harmless."""
        deadline = time.monotonic() + STOP_SECONDS
        while self._unacknowledged and time.monotonic() < deadline:
            try:
                self._acknowledge()
            except RedisUnavailable:
                time.sleep(FIRST_PAUSE_SECONDS)

    # Entries.

    def _take(self, found: Claimed) -> None:
        if found.vanished:
            self._record_vanished(found.vanished)
        suspects = [entry for entry in found.entries if entry.deliveries >= SUSPECT_DELIVERIES]
        others = [entry for entry in found.entries if entry.deliveries < SUSPECT_DELIVERIES]
        if others:
            self._process(others)
        for entry in suspects:
            self._process_alone(entry)

    def _record_vanished(self, ids: Sequence[str]) -> None:
        """Record the ids, then remove them from the pending list."""
        lost = self._until_written(lambda: self._writer.write_vanished(ids))
        self.counters.vanished += lost
        if lost:
            LOG.error(
                "%d pending entries of %s were deleted before they were processed: %s",
                lost, self.settings.stream, ", ".join(ids[:10]),
            )  # fmt: skip
        self._unacknowledged += ids

    def _process(self, entries: Sequence[Entry]) -> None:
        for chunk in chunks(entries, _size, size=CHUNK_BYTES):
            try:
                self._until_written(partial(self._writer.write, chunk, self.counters, alone=False))
            except OUTAGE:
                raise
            except Exception as error:
                LOG.warning("a chunk failed and is processed entry by entry", exc_info=error)
                for entry in chunk:
                    self._process_alone(entry)
            else:
                self.counters.read += len(chunk)
                self._unacknowledged += [entry.id for entry in chunk]

    def _process_alone(self, entry: Entry) -> None:
        """Process one entry; what fails too often while the database answers is a letter."""
        self.counters.alone += 1
        tries = self._until_written(lambda: self._writer.count_try(entry))
        try:
            if tries <= self.settings.max_tries:
                self._until_written(
                    lambda: self._writer.write([entry], self.counters, alone=True),
                    retries=RETRIES_ALONE,
                )
            else:
                why = "the process ended during each try"
                self._until_written(lambda: self._writer.write_failed(entry, tries - 1, why))
                self.counters.letters += 1
        except OUTAGE:
            raise  # stays pending, and is claimed again
        except Exception as error:
            LOG.warning("entry %s failed alone (try %d)", entry.id, tries, exc_info=error)
            if tries < self.settings.max_tries:
                return
            why = f"{type(error).__name__}: {error}"
            self._until_written(lambda: self._writer.write_failed(entry, tries, why))
            self.counters.letters += 1
        self.counters.read += 1
        self._unacknowledged.append(entry.id)

    def _acknowledge(self) -> None:
        if not self._unacknowledged:
            return
        failpoint("intake.ack")
        try:
            self._stream.acknowledge(self._unacknowledged)
        except RedisUnavailable:
            self.counters.xack_failures += 1
            self._xack_failures += 1
            raise
        self.counters.acknowledged += len(self._unacknowledged)
        self._unacknowledged.clear()
        failpoint("intake.acked")

    # Outages.

    def _succeeds(self, step: Callable[[], None]) -> bool:
        """Run a step; if Redis or the database is away, say so and wait."""
        try:
            step()
        except RedisUnavailable as error:
            self.counters.redis_failures += 1
            self._trouble(str(error))
            self._report()
        except OUTAGE as error:
            self._trouble(str(error))
        else:
            if self.problem is not None:
                LOG.warning("the intake of %s continues", self.settings.stream)
            self.problem, self._failures = None, 0
            return True
        self._pause()
        return False

    def _until_written(self, write: Callable[[], T], retries: int | None = None) -> T:
        """Repeat a write while the database is away; the entries stay pending meanwhile."""
        failures = 0
        while True:
            try:
                answer = write()
            except RedisUnavailable:
                raise
            except OUTAGE as error:
                failures += 1
                self.counters.database_failures += 1
                retryable = isinstance(error, Retryable)
                if self._stop.is_set() or (
                    retryable and retries is not None and failures > retries
                ):
                    raise
                self._trouble(str(error))
                if retryable:  # another transaction holds a row; figures stay current meanwhile
                    self._look()
                    self._report()
                self._pause()
            else:
                if failures:
                    self.problem, self._failures = None, 0
                    LOG.warning("the database answers again")
                return answer

    def _trouble(self, problem: str) -> None:
        if problem != self.problem:
            LOG.warning("the intake of %s waits: %s", self.settings.stream, problem)
        self.problem = problem
        self._failures += 1

    def _pause(self) -> None:
        most = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(self._failures, 10))
        self._stop.wait(random.uniform(most / 2, most))  # noqa: S311 - spreads retries

    def _look(self) -> None:
        """Store what Redis says about the group."""
        looked_at = time.monotonic()
        self.snapshot = self._stream.snapshot()
        if self.snapshot is not None:
            self._writer.store_look(self.snapshot, time.monotonic() - looked_at)

    def _report(self, *, ended: bool = False) -> None:
        """Store the state of this process; a report that fails is only logged."""
        settings = self.settings
        try:
            self._writer.run(
                letters.report_intake(
                    tenant=settings.tenant,
                    stream=settings.stream,
                    group=settings.group,
                    consumer=settings.consumer,
                    started_at=self._started_at,
                    problem=self.problem,
                    figures=asdict(self.counters),
                    ended=ended,
                )
            )
            if self._xack_failures:
                self._writer.count_xack_failures(self._xack_failures)
                self._xack_failures = 0
        except HelixError as error:
            LOG.info("the report was not stored: %s", error)


def _size(entry: Entry) -> int:
    return sum(len(name) + len(value) for name, value in entry.fields)
