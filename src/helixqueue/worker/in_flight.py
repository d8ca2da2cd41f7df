"""The attempts of one worker: waiting for a slot, running, or waiting for their settlement."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from helixqueue.log.events import WORKER_LOG, log_write
from helixqueue.worker.attempt import Attempt
from helixqueue.worker.health import WorkSummary
from helixqueue.worker.outcomes import report_mismatch, report_refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from helixqueue.transport.protocol import LeaseRow, Settlement, WriteResult
    from helixqueue.worker.heartbeat import Heartbeat
    from helixqueue.worker.output_files import OutputFiles

LOG = logging.getLogger("helixqueue.worker")


class InFlight:
    """Every lease that this worker holds, by batch. Listens to the heartbeat."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.heartbeat: Heartbeat  # set by the worker: each of the two needs the other
        self.outputs: OutputFiles  # set by the worker
        self.counts = WorkSummary()
        self.held: dict[int, Attempt] = {}
        self.ready: deque[Attempt] = deque()  # to be taken by a slot
        self.running: dict[Attempt, asyncio.Task[None]] = {}
        self.unstarted: list[Attempt] = []  # to be released: claimed when the worker was stopped
        self.stuck_threads = 0  # threads of handlers that continue after the end of their lease
        self.is_stopping = False
        self._idle_slots: deque[asyncio.Future[None]] = deque()

    async def next_ready(self) -> Attempt:
        while not self.ready:
            woken = asyncio.get_running_loop().create_future()
            self._idle_slots.append(woken)
            await woken
        return self.ready.popleft()

    # Results of the claimer's calls.

    def add(
        self, rows: Sequence[LeaseRow], claimed_at: float, request_id: UUID | None = None
    ) -> None:
        """Take leases that were claimed."""
        if WORKER_LOG.isEnabledFor(logging.INFO):
            for row in rows:
                log_write(self.worker, "claim", row, request_id=request_id)
        self.heartbeat.add(rows, claimed_at)
        queue = self.unstarted if self.is_stopping else self.ready
        for row in rows:
            earlier = self.held.get(row.batch)
            if earlier is not None and not earlier.is_finished and not earlier.settled_as:
                # Its lease expired, was reaped, and this worker claimed it again: the older token
                # is stale. (A finished attempt gets an answer; a settled one had it, and its
                # failure may have made the batch claimable.)
                self.abandon(earlier, "the lease expired and was claimed again", self.worker)
            attempt = self.held[row.batch] = Attempt(row, claimed_at)
            queue.append(attempt)
        for _ in range(min(len(rows), len(self._idle_slots))):
            slot = self._idle_slots.popleft()
            if not slot.done():
                slot.set_result(None)

    def settled(
        self,
        sent: Mapping[int, tuple[Attempt, Settlement]],
        results: Sequence[WriteResult],
        request_id: UUID | None = None,
    ) -> None:
        """Count and log the results of one call, and forget its attempts."""
        if len(results) != len(sent):
            raise AssertionError(f"expected {len(sent)} results, got {len(results)}")
        counts, held = self.counts, self.held
        is_logged = WORKER_LOG.isEnabledFor(logging.INFO)
        forgotten = []
        for result in results:
            batch = result.batch
            attempt, settlement = sent[batch]
            if is_logged:
                log_write(
                    self.worker, "settle", attempt.row, result, request_id=request_id,
                    detail=settlement.detail,
                )  # fmt: skip
            if result.answer == "ok" or result.answer == "repeat":  # noqa: PLR1714 - for every batch
                if settlement.outcome == "completed":
                    counts.completed += 1
                    if attempt.manifest is not None:
                        self.outputs.publish(attempt.manifest)
                else:
                    counts.failed += 1
                if result.mismatch:
                    report_mismatch(attempt.row.batch_id, self.worker)
            else:
                counts.lost += 1
                report_refused(attempt.row.batch_id, result)
            if held.get(batch) is attempt:
                del held[batch]
                forgotten.append(batch)
        self.heartbeat.drop(forgotten)

    def forget(self, attempt: Attempt) -> None:
        """The attempt has ended, and nothing is left to send."""
        batch = attempt.row.batch
        if self.held.get(batch) is attempt:
            del self.held[batch]
            self.heartbeat.drop([batch])

    # Results of renewals.

    def renewed(self, leases: Sequence[tuple[int, int | str]], sent_at: float) -> None:
        for batch, number in leases:
            attempt = self.held.get(batch)
            if attempt is not None and attempt.row.token.number == number:
                attempt.renewed(sent_at)

    def refused(self, batch: int, number: int | str, owner: str | None, state: str | None) -> None:
        attempt = self.held.get(batch)
        if attempt is None or attempt.row.token.number != number or attempt.settled_as:
            return
        if attempt.unconfirmed is not None and owner is None and state != "CANCELLED":
            return  # its own transaction may have ended it; the executor reads the ledger
        reason = "cancelled" if state == "CANCELLED" else f"refused: the batch is {state}"
        self.abandon(attempt, reason, owner)

    # The end of a lease.

    def abandon(self, attempt: Attempt, reason: str, owner: str | None = None) -> None:
        """Stop an attempt whose lease is lost. Nothing of it is written."""
        if attempt.stop_kind is not None:
            return
        detail = f"{reason}; {owner} holds it now" if owner else reason
        LOG.warning("%s abandons batch %s: %s", self.worker, attempt.row.batch_id, detail)
        attempt.stop("abandoned", reason, owner)
        self.cancel(attempt)

    def cancel(self, attempt: Attempt) -> None:
        """Cancel the handler of a stopped attempt; forget it if no slot runs it."""
        task = self.running.get(attempt)
        if task is not None:
            if attempt.handler_runs:  # else the slot is about to see that it was stopped
                task.cancel()
        elif attempt.stop_kind == "abandoned":
            self.lost(attempt)

    def lost(self, attempt: Attempt) -> None:
        """An attempt ended without its lease, and there is no settlement to send."""
        self.counts.lost += 1
        if attempt.refused is None:  # else the refusal is in the log
            log_write(
                self.worker, "abandon", attempt.row, decision="lost", detail=attempt.stop_reason
            )
        self.forget(attempt)
