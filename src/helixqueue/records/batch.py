"""A batch: its row in a list, its detail with history, its outcome, and answers to actions on it.

Identities are tuples of their parts, `()` for none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from helixqueue.records.lease import ResultWord
    from helixqueue.states import State

Place = Literal["ready", "waiting", "active", "outcome", "retired"]


Cause = Literal["delay", "limit", "paused"]


class BatchRow(NamedTuple):
    """A batch in a list: what was asked, and where it stands."""

    batch_id: UUID
    key: str
    tenant: str
    queue: str
    identity: tuple[str, ...]  # canonical
    raw: tuple[str, ...]  # as it came
    revision: str
    state: State
    attempt: int
    priority: int
    created_at: datetime
    worker: str | None  # who holds it now
    deadline: datetime | None
    cause: Cause | None  # why it is pending and not claimable
    due: datetime | None
    finished_at: datetime | None
    finished_by: str | None
    failure: str | None  # failure class of a FAILED batch
    detail: str | None
    last_worker: str | None  # worker that held a finished batch last


@dataclass(frozen=True, slots=True)
class BatchPage:
    rows: tuple[BatchRow, ...]
    next: str | None  # hand it to the next call; None: that was all


@dataclass(frozen=True, slots=True)
class EventRow:
    """One step of a batch's life, as the ledger has it."""

    version: int
    at: datetime
    from_state: State | None
    to_state: State
    reason: str
    actor: str
    attempt: int
    epoch: int | None
    number: int | None
    detail: str | None
    late: bool


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One worker's hold on a batch, from claim to end. A released one costs no attempt."""

    attempt: int
    epoch: int | None
    number: int | None
    worker: str
    claimed_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None  # None: it is held now
    end: str | None = None  # the reason of the event that ended it
    ended_by: str | None = None
    detail: str | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class RefusalRow:
    """A write with a stale token: who tried, and who had the batch."""

    operation: str
    worker: str
    owner: str | None
    epoch: int
    number: int
    owner_number: int | None
    state: State | None
    why: str
    times: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A duplicate, a conflict, an erasure: what was decided and changed no state."""

    at: datetime
    kind: str
    actor: str
    detail: str | None


@dataclass(frozen=True, slots=True)
class BatchDetail:
    """Everything on record about one batch; after retention, its key, state and decisions."""

    batch_id: UUID
    key: str
    fingerprint: str
    tenant: str
    queue: str | None
    identity: tuple[str, ...]
    raw: tuple[str, ...]
    profile: str | None
    revision: str | None
    priority: int | None
    run_at: datetime | None
    expires_at: datetime | None
    limit_key: str | None
    actor: str | None  # who submitted it
    created_at: datetime | None
    state: State
    place: Place
    version: int
    attempt: int
    worker: str | None
    deadline: datetime | None
    epoch: int | None
    number: int | None
    cause: Cause | None
    due: datetime | None
    finished_at: datetime | None
    finished_by: str | None
    failure: str | None
    detail: str | None
    retired_at: datetime | None
    erased: bool  # its payload is gone, by erasure or retention
    payload: str | None  # JSON text, when asked for
    result: str | None  # JSON text, when asked for
    events: tuple[EventRow, ...]
    leases: tuple[AttemptRow, ...]
    refusals: tuple[RefusalRow, ...]
    decisions: tuple[DecisionRow, ...]


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """Where a batch stands, and what it ended with once it has finished."""

    batch_id: UUID
    state: State
    attempt: int | None
    finished_at: datetime | None  # None: not finished, or retired
    finished_by: str | None
    failure: str | None
    detail: str | None
    result: str | None  # JSON text, when asked for
    late: bool
    queue: str | None  # of a finished one: tells what its result looks like


@dataclass(frozen=True, slots=True)
class ActionResult:
    """Answer to a cancel, retry, release or erase of one batch.

    Of a dry run, `ok` means that the batch would be changed, and `state` is its state now.
    """

    batch_id: UUID
    answer: ResultWord
    state: State | None
    note: str | None
    queue: str | None = None
    identity: tuple[str, ...] = ()
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class ActionPage:
    """Answers of an action on the batches that match some filters."""

    rows: tuple[ActionResult, ...]
    next: str | None  # cursor of the next page; None: no more batches match
