"""One attempt of this worker: a lease, from its claim to its end."""

from __future__ import annotations

import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from helixqueue.outputs.scratch import ScratchFile
    from helixqueue.transport.protocol import LeaseRow, Settlement

# A worker that could not renew a lease abandons it this fraction of its length before its end.
ABANDON_FRACTION = 0.1
ABANDON_MIN_SECONDS = 0.05
# A settlement that is sent before this fraction of the lease cannot meet a renewal.
FIRST_RENEWAL_FRACTION = 0.2

StopKind = Literal["abandoned", "released", "timed out"]


@lru_cache(maxsize=64)  # called for every batch; the leases of a queue have one length
def abandon_margin(lease_seconds: float) -> float:
    """Seconds before the end of a lease at which its worker abandons it."""
    return max(lease_seconds * ABANDON_FRACTION, ABANDON_MIN_SECONDS)


class Attempt:
    """A lease and the state of its handler. Belongs to the event loop's thread."""

    # Class attributes are the defaults: an attempt that completes sets few of them.
    stop_kind: StopKind | None = None
    stop_reason = ""
    owner: str | None = None  # the worker that holds the batch now, if known
    handler_runs = False  # its task can be cancelled
    is_finished = False  # the handler has ended, and the settlement waits for a call
    # The outcome that a transaction of the handler has committed.
    settled_as: Literal["completed", "failed"] | None = None
    # Sent in a transaction whose commit is not confirmed yet.
    unconfirmed: Settlement | None = None
    # Refused in a transaction and rolled back with it. It is sent again, to keep the refusal.
    refused: Settlement | None = None
    progress: tuple[float | None, str] | None = None
    output_directory: Path | None = None  # where its handler writes output files
    log_directory: Path | None = None  # where the output of its program is
    temporary: tuple[Path, ...] = ()  # directories that end with it
    # What was staged for it, and the manifest in which that is registered.
    staged: list[ScratchFile] | None = None
    manifest: UUID | None = None
    _on_stop: tuple[Callable[[], object], ...] = ()

    def __init__(self, row: LeaseRow, claimed_at: float) -> None:
        """`claimed_at` is when the claim was sent: the lease did not begin earlier."""
        self.row = row
        self.claimed_at = claimed_at
        self.abandon_at = claimed_at + row.lease_seconds - abandon_margin(row.lease_seconds)

    def renewed(self, sent_at: float) -> None:
        lease_seconds = self.row.lease_seconds
        self.abandon_at = sent_at + lease_seconds - abandon_margin(lease_seconds)

    def is_overdue(self, now: float) -> bool:
        """Whether the lease is about to end and the work is not."""
        return self.abandon_at <= now and not self.is_finished and not self.settled_as

    @property
    def may_be_renewed(self) -> bool:
        """Whether a renewal may have been sent, or may be about to."""
        age = time.monotonic() - self.claimed_at
        return age >= self.row.lease_seconds * FIRST_RENEWAL_FRACTION

    def stop(self, kind: StopKind, reason: str, owner: str | None = None) -> None:
        """End the attempt without a settlement: nothing of it is written from now on."""
        if self.stop_kind is None:
            self.stop_kind, self.stop_reason, self.owner = kind, reason, owner
            for callback in self._on_stop:
                callback()

    def on_stop(self, callback: Callable[[], object]) -> None:
        self._on_stop += (callback,)
        if self.stop_kind is not None:
            callback()

    def make_output_directory(self) -> Path:
        """The directory for output files; the executor removes it."""
        if self.output_directory is None:
            self.output_directory = self._make_directory("out")
        return self.output_directory

    def make_log_directory(self) -> Path:
        """The directory for the output of a program; the executor removes it."""
        return self._make_directory("log")

    def _make_directory(self, name: str) -> Path:
        directory = Path(tempfile.mkdtemp(prefix=f"helix-{name}-"))
        self.temporary += (directory,)
        return directory

    def report_progress(self, fraction: float | None, note: str) -> None:
        self.progress = (fraction, note)
