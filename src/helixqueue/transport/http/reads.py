"""Every read, as `helixqueue.engine.reads` has it, over HTTP."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from helixqueue.identity import canonical_text
from helixqueue.records.batch import (
    AttemptRow,
    BatchDetail,
    BatchPage,
    BatchRow,
    DecisionRow,
    EventRow,
    OutcomeRow,
    RefusalRow,
)
from helixqueue.records.queue import BoundedCount, QueuePage, QueueSummary
from helixqueue.records.worker import WorkerPage, WorkerRow
from helixqueue.states import State
from helixqueue.transport.http.call import HttpCall, at, get, unless
from helixqueue.transport.http.calls import read_identity, read_queue

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")
COUNT_BOUND = 1_000
_COUNTS = ("ready", "waiting", "assigned", "running", "completed", "failed", "cancelled")
_TIMES = {
    "at", "created_at", "deadline", "due", "finished_at", "claimed_at", "started_at", "ended_at",
    "first_at", "last_at", "run_at", "expires_at", "retired_at", "first_seen", "last_seen",
}  # fmt: skip
_STATES = {"state", "from_state", "to_state"}


def batches(
    *,
    tenant: str | None = None,  # noqa: ARG001 - the token's
    queue: str | None = None,
    state: State | None = None,
    failure: str | None = None,
    identity: str | tuple[str, ...] | None = None,
    worker: str | None = None,
    run: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    after: str | None = None,
    limit: int = 50,
) -> HttpCall[BatchPage]:
    """A page of batches. `identity` may come in any spelling."""
    parts = identity if isinstance(identity, tuple) else (identity,)
    asked = [
        ("queue", queue),
        ("state", None if state is None else state.value),
        ("failure", failure),
        *(("identity", part) for part in parts),
        ("worker", worker),
        ("run", None if run is None else str(run)),
        ("since", None if since is None else since.isoformat()),
        ("until", None if until is None else until.isoformat()),
        ("after", after),
        ("limit", str(limit)),
    ]
    query = [(name, value) for name, value in asked if value is not None]
    return get(
        at("batches"),
        lambda told: BatchPage(tuple(_row(BatchRow, one) for one in told["batches"]), told["next"]),
        query,
    )


def batch_detail(batch_id: UUID, *, payload: bool = False) -> HttpCall[BatchDetail | None]:
    """The story of one batch; with `payload`, also its payload and result."""
    call: HttpCall[BatchDetail | None] = get(
        at("batches", batch_id), _read_story, [("payload", "true")] if payload else ()
    )
    return unless("no-such-batch", call, lambda _: None)


def _read_story(told: dict[str, Any]) -> BatchDetail:
    has = told["has_payload"], told["has_result"]
    texts = [
        canonical_text(told[name]) if there else None
        for name, there in zip(("payload", "result"), has, strict=True)
    ]
    whole = told | {
        "events": tuple(_row(EventRow, one) for one in told["events"]),
        "leases": tuple(_row(AttemptRow, one) for one in told["attempts"]),
        "refusals": tuple(_row(RefusalRow, one) for one in told["refusals"]),
        "decisions": tuple(_row(DecisionRow, one) for one in told["decisions"]),
        "payload": texts[0],
        "result": texts[1],
    }
    return _row(BatchDetail, whole)


def outcomes(*, ids: Sequence[UUID], results: bool = False) -> HttpCall[list[OutcomeRow | None]]:
    """Where a batch stands; None for an id that nobody knows (or may see). One id a request."""
    [batch_id] = ids
    call: HttpCall[list[OutcomeRow | None]] = get(
        at("batches", batch_id, "outcome"),
        lambda told: [_read_outcome(told)],
        [("result", "true" if results else "false")],
    )
    return unless("no-such-batch", call, lambda _: [None])


def _read_outcome(told: dict[str, Any]) -> OutcomeRow:
    text = json.dumps(told["result"], ensure_ascii=False) if told["has_result"] else None
    return _row(OutcomeRow, told | {"result": text})


def events(*, ids: Sequence[UUID], after: int = 0) -> HttpCall[dict[UUID, list[EventRow]]]:
    """The ledger of a batch, from the step behind `after` on; an unknown id has no steps."""
    [batch_id] = ids

    def read(told: dict[str, Any]) -> dict[UUID, list[EventRow]]:
        steps = [_row(EventRow, one) for one in told["events"]]
        return {batch_id: [step for step in steps if step.version > after]}

    return unless("no-such-batch", get(at("batches", batch_id), read), lambda _: {batch_id: []})


def queues(
    *,
    tenant: str | None = None,  # noqa: ARG001
    queue: str | None = None,
    bound: int = COUNT_BOUND,
    after: str | None = None,
    limit: int = 50,
) -> HttpCall[QueuePage]:
    """A page of queues, settings and counts, by name; nothing is counted past `bound`.

    That is at most 10,000.
    """
    count = [("count_to", str(bound))]
    if queue is not None:
        one = get(at("queues", queue), lambda told: QueuePage((_read_sight(told),), None), count)
        return unless("no-such-queue", one, lambda _: QueuePage((), None))
    return get(
        at("queues"),
        lambda told: QueuePage(tuple(_read_sight(one) for one in told["queues"]), told["next"]),
        [*count, ("limit", str(limit)), *([] if after is None else [("after", after)])],
    )


def _read_sight(told: dict[str, Any]) -> QueueSummary:
    counts = [BoundedCount(**told["counts"][name]) for name in _COUNTS]
    return QueueSummary(read_queue(told), *counts)


def workers(
    *, since: datetime | None = None, after: str | None = None, limit: int = 50
) -> HttpCall[WorkerPage]:
    """A page of workers that said hello over HTTP, by name."""
    asked = [
        ("since", None if since is None else since.isoformat()),
        ("after", after),
        ("limit", str(limit)),
    ]
    return get(
        at("workers"),
        lambda told: WorkerPage(
            tuple(_row(WorkerRow, {"role": None, **one}) for one in told["workers"]), told["next"]
        ),
        [(name, value) for name, value in asked if value is not None],
    )


def _row(kind: type[T], told: dict[str, Any]) -> T:
    """A row of the store's from what stands in an answer."""
    return kind(**{name: _value(name, told[name]) for name in kind.__annotations__})


def _value(name: str, value: Any) -> Any:
    if name in {"identity", "raw"}:
        return read_identity(value)
    if value is None or not isinstance(value, str):
        return value
    if name in _TIMES:
        return datetime.fromisoformat(value)
    if name in _STATES:
        return State(value)
    return UUID(value) if name == "batch_id" else value
