"""Reads of batches, queues and workers, described like the calls of calls.py; SQL in reads.sql.

Lists come in pages, newest first, ordered by when batches finished or else were submitted. A page
scans a bounded number of rows, so it can be short: only a page without `next` is the last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from helixqueue.engine.arrays import plain, texts
from helixqueue.engine.calls import LEASES_MAX, identity_parts, queue_members
from helixqueue.engine.cursors import (
    after_queue,
    after_time,
    after_worker,
    demand_page,
    scanned_page,
)
from helixqueue.errors import InvalidIdentity, Refused
from helixqueue.identity import (
    PART_SEPARATOR,
    PROFILES,
    canonicalize,
    key_text,
    stored_public_id,
)
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.batch import (
    BatchContent,
    BatchDetail,
    BatchRow,
    DecisionRow,
    DifferenceRow,
    EventRow,
    JsonText,
    MemberChange,
    OutcomeRow,
    RefusalRow,
    SourceRow,
    attempts_of,
)
from helixqueue.records.page import Page
from helixqueue.records.queue import BoundedCount, QueueCounts, QueueSummary
from helixqueue.records.worker import WorkerRow
from helixqueue.states import FINISHED, State

if TYPE_CHECKING:
    ReadJson = Callable[[str | None], Any]

_SQL = sql_texts("helixqueue.engine", "reads.sql")

DETAIL_ROWS_MAX = 10_000
COUNT_BOUND = 10_000
# How many rows a page scans for those that pass its filters, by scan (sql/93_scans.sql) or list: a
# few milliseconds' worth.
_ROWS_SCANNED = {
    "finished_by": 2_000,
    "leased": 5_000,
    "pending": 500,
    "identity": 200,
    "workers": 2_000,
}
# The statement returns its columns in the order of the fields, without those derived from others.
_DERIVED = {"attempts", "has_payload", "has_result"}
_DETAIL_COLUMNS = [field.name for field in fields(BatchDetail) if field.name not in _DERIVED]
_REFUSAL_COLUMNS = [field.name for field in fields(RefusalRow)]


def batches(
    *,
    tenant: str | None = None,
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
) -> Call[Page[BatchRow]]:
    """Read a page of batches; those of an `identity`, in any spelling, by submission time.

    `worker` selects the worker that holds the batch or lost it, or with a finished state, that
    finished it.
    `failure` is a failure class and implies the state FAILED.
    """
    demand_page(limit)
    if failure is not None:
        if state not in {None, State.FAILED}:
            raise Refused(f"failure: expected the state FAILED, got {state}; omit one of the two")
        state = State.FAILED
    args = {
        "scan": _scan(state, worker, failure),
        "tenant": tenant,
        "queue": queue,
        "worker": worker,
        "failure": failure,
        "run": run,
        "identity": None,
        "state": state and state.value,
        "since": since or "-infinity",
        "until": until or "infinity",
        "limit": limit + 1,  # the extra row shows whether there is another page
    }
    if identity is not None:
        args["scan"] = "identity"
        args["identity"] = texts([PART_SEPARATOR.join(form) for form in _forms(identity)])
    elif run is not None:
        args["scan"] = "run"
    args["look"] = max(_ROWS_SCANNED.get(str(args["scan"]), 0), limit + 1)
    # Leased batches are in the order of internal ids, so a time does not bound their scan.
    args |= after_time(after, None if args["scan"] == "leased" else until)

    def read(rows: list[Row]) -> Page[BatchRow]:
        return scanned_page(rows, 2, limit, lambda row: _read_batch(row[2:]))

    return Call(_SQL["batches"], args, read)


def _scan(state: State | None, worker: str | None, failure: str | None) -> str:
    """Which scan of sql/93_scans.sql finds these batches."""
    if state in FINISHED:
        return "finished" if worker is None and failure is None else "finished_by"
    if state is State.PENDING:
        if worker is not None:
            raise Refused("a PENDING batch has no worker; filter by state or by worker, not both")
        return "pending"
    return "all" if state is None and worker is None else "leased"


def _forms(identity: str | tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the canonical forms under all profiles; raise the last refusal if none accepts it."""
    forms: dict[tuple[str, ...], None] = {}
    refusal: InvalidIdentity | None = None
    for profile in PROFILES:
        try:
            forms[canonicalize(identity, profile).canonical] = None
        except InvalidIdentity as error:
            refusal = error
    if not forms and refusal is not None:
        raise refusal
    return list(forms)


def _read_batch(row: Row) -> BatchRow:
    key, tenant, queue, identity, raw, revision, state, *rest = row
    return BatchRow(
        stored_public_id(key), key_text(key), tenant, queue, identity_parts(identity),
        identity_parts(raw or identity), revision, State(state), *rest,
    )  # fmt: skip


def batch_detail(
    batch_id: UUID, *, payload: bool = False, as_text: bool = False
) -> Call[BatchDetail | None]:
    """Read everything recorded about one batch; with `payload`, also its payload and result.

    With `as_text` these are `JsonText`.
    """
    read = partial(_read_detail, read_json=_text if as_text else _json)
    args = {"ids": plain([batch_id]), "payload": payload, "limit": DETAIL_ROWS_MAX}
    return Call(_SQL["batch_detail"], args, lambda rows: read(rows[0]) if rows else None)


def _read_detail(row: Row, *, read_json: ReadJson) -> BatchDetail:
    values = dict(zip(_DETAIL_COLUMNS, row, strict=True))
    ledger = tuple(_read_event(event) for event in _rows(values["events"]))
    return BatchDetail(
        **values
        | {
            "key": key_text(values["key"]),
            "fingerprint": values["fingerprint"].hex(),
            "identity": identity_parts(values["identity"]),
            "raw": identity_parts(values["raw"] or values["identity"]),
            "state": State(values["state"]),
            "payload": read_json(values["payload"]),
            "result": read_json(values["result"]),
            "has_payload": values["payload"] is not None,
            "has_result": values["result"] is not None,
            "events": ledger,
            "attempts": attempts_of(ledger),
            "refusals": tuple(_read_refusal(refusal) for refusal in _rows(values["refusals"])),
            "decisions": tuple(
                DecisionRow(_time(at), kind, actor, detail, times, _time(last or at))
                for at, kind, actor, detail, times, last in _rows(values["decisions"])
            ),
            "differences": tuple(
                DifferenceRow(
                    _time(at),
                    actor,
                    None if changes is None else tuple(MemberChange(*item) for item in changes),
                )
                for at, actor, changes in _rows(values["differences"])
            ),
            "sources": tuple(
                SourceRow(kind, name, source, decision, times, _time(first), _time(last), actor)
                for kind, name, source, decision, times, first, last, actor in _rows(
                    values["sources"]
                )
            ),
        }
    )


def outcomes(
    *, ids: Sequence[UUID], results: bool = False, as_text: bool = False
) -> Call[list[OutcomeRow | None]]:
    """Read states and results, in the order of `ids`; None for an unknown or invisible id.

    With `as_text` a result is a `JsonText`.
    """
    _demand_chunk("outcomes", ids)
    read_json = _text if as_text else _json

    def read(rows: list[Row]) -> list[OutcomeRow | None]:
        by_id = {row[0]: _read_outcome(row, read_json) for row in rows}
        return [by_id.get(batch_id) for batch_id in ids]

    return Call(_SQL["outcomes"], {"ids": plain(ids), "results": results}, read)


def _read_outcome(row: Row, read_json: ReadJson) -> OutcomeRow:
    batch_id, state, attempt, finished_at, finished_by, failure, detail, result, late, queue = row
    return OutcomeRow(
        batch_id, State(state), attempt, finished_at, finished_by, failure, detail,
        read_json(result), late, queue, has_result=result is not None,
    )  # fmt: skip


def contents(*, ids: Sequence[UUID]) -> Call[list[BatchContent]]:
    """Read batches with payload and result, in the order of `ids`; unknown ids have no row."""
    _demand_chunk("contents", ids)

    def read(rows: list[Row]) -> list[BatchContent]:
        by_id = {row[0]: _read_content(row) for row in rows}
        return [by_id[batch_id] for batch_id in ids if batch_id in by_id]

    return Call(_SQL["contents"], {"ids": plain(ids)}, read)


def _read_content(row: Row) -> BatchContent:
    batch_id, key, fingerprint, tenant, queue, identity, raw, profile, revision, state, *rest = row
    content = BatchContent(
        batch_id, key_text(key), fingerprint.hex(), tenant, queue, identity_parts(identity),
        identity_parts(raw or identity), profile, revision, State(state), *rest,
    )  # fmt: skip
    return replace(content, payload=_json(content.payload), result=_json(content.result))


def events(*, ids: Sequence[UUID], after: int = 0) -> Call[dict[UUID, list[EventRow]]]:
    """Read the events of batches with a version above `after`; an unknown id has no events."""
    _demand_chunk("events", ids)

    def read(rows: list[Row]) -> dict[UUID, list[EventRow]]:
        by_id: dict[UUID, list[EventRow]] = {batch_id: [] for batch_id in ids}
        for batch_id, *columns in rows:
            by_id[batch_id].append(_read_event(columns))
        return by_id

    return Call(_SQL["events"], {"ids": plain(ids), "after": after}, read)


def queues(
    *,
    tenant: str | None = None,
    queue: str | None = None,
    bound: int = COUNT_BOUND,
    after: str | None = None,
    limit: int = 50,
) -> Call[Page[QueueSummary]]:
    """Read a page of queues by name: settings and counts.

    Counting stops at `bound`, which is at most 100,000.
    """
    demand_page(limit)
    args = {"tenant": tenant, "queue": queue, "bound": bound, "limit": limit + 1}

    def read(rows: list[Row]) -> Page[QueueSummary]:
        cursor = "/".join(rows[limit - 1][:2]) if len(rows) > limit else None
        return Page(tuple(_read_queue(row, bound) for row in rows[:limit]), cursor)

    return Call(_SQL["queues"], args | after_queue(after), read)


def _read_queue(row: Row, bound: int) -> QueueSummary:
    _, _, settings, ready, waiting, assigned, running, completed, failed, cancelled, cut = row

    def count(number: int, *, cut: bool = False) -> BoundedCount:
        return BoundedCount(min(number, bound), more=cut or number > bound)

    return QueueSummary(
        **queue_members(settings),
        counts=QueueCounts(
            count(ready),
            count(waiting),
            count(assigned, cut=cut),
            count(running, cut=cut),
            count(completed),
            count(failed),
            count(cancelled),
        ),
    )


def workers(
    *,
    tenant: str | None = None,
    since: datetime | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Call[Page[WorkerRow]]:
    """Read a page of workers by tenant and name; `since` keeps those that reported since then."""
    demand_page(limit)
    args = {
        "tenant": tenant,
        "since": since or "-infinity",
        "limit": limit + 1,  # the extra row shows whether there is another page
        "look": max(_ROWS_SCANNED["workers"], limit + 1),
    }

    def read(rows: list[Row]) -> Page[WorkerRow]:
        workers = [
            WorkerRow(tenant, name, role, status, json.loads(free), *rest)
            for _, _, _, tenant, name, role, status, free, *rest in rows
            if name is not None
        ]
        edge = rows[0][:3]
        if len(workers) > limit:
            last = workers[limit - 1]
            edge = last.tenant, last.name, last.role
        return Page(tuple(workers[:limit]), None if edge[0] is None else PART_SEPARATOR.join(edge))

    return Call(_SQL["workers"], args | after_worker(after), read)


def tenants() -> Call[list[str]]:
    """List the tenants this role acts for; only `*` if it acts for all."""
    return Call(_SQL["tenants"], {}, lambda rows: [tenant for (tenant,) in rows])


def _read_event(columns: Sequence[Any]) -> EventRow:
    version, at, from_state, to_state, *rest = columns
    at = _time(at) if isinstance(at, str) else at
    return EventRow(version, at, State(from_state) if from_state else None, State(to_state), *rest)


def _read_refusal(columns: Sequence[Any]) -> RefusalRow:
    values = dict(zip(_REFUSAL_COLUMNS, columns, strict=True))
    state, first, last = values["state"], _time(values["first_at"]), _time(values["last_at"])
    return RefusalRow(
        **values | {"state": state and State(state), "first_at": first, "last_at": last}
    )


def _json(text: str | None) -> Any:  # noqa: ANN401 - JSON
    return None if text is None else json.loads(text)


def _text(text: str | None) -> JsonText | None:
    return None if text is None else JsonText(text)


def _rows(text: str | None) -> list[list[Any]]:
    return json.loads(text) if text else []


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _demand_chunk(name: str, ids: Sequence[UUID]) -> None:
    if len(ids) > LEASES_MAX:
        raise ValueError(
            f"{name}: expected at most {LEASES_MAX} ids per call, got {len(ids)}; split into chunks"
        )
