"""The reads of `helixqueue.engine.reads`, over HTTP."""

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
    SourceRow,
)
from helixqueue.records.worker import WorkerPage, WorkerRow
from helixqueue.states import State
from helixqueue.transport.http.call import HttpCall, at, get, unless
from helixqueue.transport.http.calls import read_identity

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")
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
    """Read a page of batches. `identity` matches in any spelling."""
    parts = identity if isinstance(identity, tuple) else (identity,)
    parameters = [
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
    query = [(name, value) for name, value in parameters if value is not None]
    return get(
        at("batches"),
        lambda document: BatchPage(
            tuple(_row(BatchRow, item) for item in document["batches"]), document["next"]
        ),
        query,
    )


def batch_detail(batch_id: UUID, *, payload: bool = False) -> HttpCall[BatchDetail | None]:
    """Read everything recorded about one batch; with `payload`, also its payload and result."""
    call: HttpCall[BatchDetail | None] = get(
        at("batches", batch_id), _read_story, [("payload", "true")] if payload else ()
    )
    return unless("no-such-batch", call, lambda _: None)


def _read_story(document: dict[str, Any]) -> BatchDetail:
    has = document["has_payload"], document["has_result"]
    texts = [
        canonical_text(document[name]) if there else None
        for name, there in zip(("payload", "result"), has, strict=True)
    ]
    whole = document | {
        "events": tuple(_row(EventRow, item) for item in document["events"]),
        "attempts": tuple(_row(AttemptRow, item) for item in document["attempts"]),
        "refusals": tuple(_row(RefusalRow, item) for item in document["refusals"]),
        "decisions": tuple(_row(DecisionRow, item) for item in document["decisions"]),
        "sources": tuple(_row(SourceRow, item) for item in document["sources"]),
        "payload": texts[0],
        "result": texts[1],
    }
    return _row(BatchDetail, whole)


def outcomes(*, ids: Sequence[UUID], results: bool = False) -> HttpCall[list[OutcomeRow | None]]:
    """Read the outcome of a batch; None for an unknown or invisible id. One id per request."""
    [batch_id] = ids
    call: HttpCall[list[OutcomeRow | None]] = get(
        at("batches", batch_id, "outcome"),
        lambda document: [_read_outcome(document)],
        [("result", "true" if results else "false")],
    )
    return unless("no-such-batch", call, lambda _: [None])


def _read_outcome(document: dict[str, Any]) -> OutcomeRow:
    text = json.dumps(document["result"], ensure_ascii=False) if document["has_result"] else None
    return _row(OutcomeRow, document | {"result": text})


def events(*, ids: Sequence[UUID], after: int = 0) -> HttpCall[dict[UUID, list[EventRow]]]:
    """Read the events of a batch after version `after`; an unknown id has none."""
    [batch_id] = ids

    def read(document: dict[str, Any]) -> dict[UUID, list[EventRow]]:
        steps = [_row(EventRow, item) for item in document["events"]]
        return {batch_id: [step for step in steps if step.version > after]}

    return unless("no-such-batch", get(at("batches", batch_id), read), lambda _: {batch_id: []})


def workers(
    *, since: datetime | None = None, after: str | None = None, limit: int = 50
) -> HttpCall[WorkerPage]:
    """Read a page of workers that use the service, by name."""
    parameters = [
        ("since", None if since is None else since.isoformat()),
        ("after", after),
        ("limit", str(limit)),
    ]
    return get(
        at("workers"),
        lambda document: WorkerPage(
            tuple(_row(WorkerRow, item) for item in document["workers"]),
            document["next"],
        ),
        [(name, value) for name, value in parameters if value is not None],
    )


def _row(kind: type[T], document: dict[str, Any]) -> T:
    """Read a record from its JSON object."""
    return kind(**{name: _value(name, document[name]) for name in kind.__annotations__})


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
