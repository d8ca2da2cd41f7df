"""Every read, described once for sync and async, as calls.py does. The SQL is in reads.sql.

A list comes in pages, newest first, by when batches finished or else by when they were submitted.
A page looks at a bounded number of rows: only a page without `next` is the last.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from helixqueue.engine.arrays import plain, texts
from helixqueue.engine.calls import LEASES_MAX, read_queue
from helixqueue.engine.cursors import behind_name, behind_time, behind_worker, demand_page
from helixqueue.engine.statements import statements
from helixqueue.errors import InvalidIdentity, Refused
from helixqueue.identity import (
    PART_SEPARATOR,
    PROFILES,
    canonicalize,
    derive_key,
    key_text,
    stored_public_id,
)
from helixqueue.identity.canonical import canonical_revision
from helixqueue.postgres.call import Call, Row
from helixqueue.records.read_rows import (
    AttemptRow,
    BatchDetail,
    BatchPage,
    BatchRow,
    BoundedCount,
    DecisionRow,
    EventRow,
    Letter,
    LetterPage,
    OutcomeRow,
    QueuePage,
    QueueSummary,
    RefusalRow,
    WorkerPage,
    WorkerRow,
)
from helixqueue.states import FINISHED, State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

_SQL = {name: one.sql for name, one in statements("helixqueue.engine", "reads.sql").items()}

STORY_ROWS_MAX = 10_000
COUNT_BOUND = 10_000
# How many rows a page looks at for those that pass its filters, by walk (sql/93_walks.sql) or list:
# a few milliseconds' worth.
_LOOK = {
    "finished_by": 2_000,
    "leased": 5_000,
    "pending": 500,
    "identity": 200,
    "run": 500,
    "letters": 2_000,
    "workers": 2_000,
}
# The statement gives its columns in the order of the fields; leases follow from the events.
_STORY_COLUMNS = [field.name for field in fields(BatchDetail) if field.name != "leases"]
_REFUSAL_COLUMNS = [field.name for field in fields(RefusalRow)]


def batches(
    *,
    tenant: str | None = None,
    queue: str | None = None,
    state: State | None = None,
    identity: str | tuple[str, ...] | None = None,
    worker: str | None = None,
    run: int | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Call[BatchPage]:
    """A page of batches; of an `identity`, in any spelling, or a `run` by when they were submitted.

    `worker` means who holds the batch now; with a finished state, who finished it.
    """
    demand_page(limit)
    args = {
        "walk": _walk(state, worker),
        "tenant": tenant,
        "queue": queue,
        "worker": worker,
        "identity": None,
        "run": run,
        "state": state and state.value,
        "since": since or "-infinity",
        "until": until or "infinity",
        "limit": limit + 1,  # one more tells whether there is another page
    }
    if identity is not None:
        args["walk"] = "identity"
        args["identity"] = texts([PART_SEPARATOR.join(form) for form in _forms(identity)])
    elif run is not None:
        args["walk"] = "run"
    args["look"] = max(_LOOK.get(str(args["walk"]), 0), limit + 1)
    # Leased batches are in the order of internal ids, so a time does not bound their walk.
    args |= behind_time(after, None if args["walk"] == "leased" else until)
    return Call(_SQL["batches"], args, lambda rows: _read_page(rows, limit))


def _walk(state: State | None, worker: str | None) -> str:
    """Which walk of sql/93_walks.sql finds these batches."""
    if state in FINISHED:
        return "finished" if worker is None else "finished_by"
    if state is State.PENDING:
        if worker is not None:
            raise Refused("a pending batch has no worker; leave one of the two out")
        return "pending"
    return "all" if state is None and worker is None else "leased"


def _forms(identity: str | tuple[str, ...]) -> list[tuple[str, ...]]:
    """The canonical forms under all profiles; the refusal of the last if none takes it."""
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


def _read_page(rows: list[Row], limit: int) -> BatchPage:
    shown, onward = _cut(rows, limit)
    return BatchPage(tuple(_read_batch(row) for row in shown), onward)


def _cut(rows: list[Row], limit: int) -> tuple[list[Row], str | None]:
    """Each row says how far the page looked, where it stands, and what it is; nulls for none."""
    edge = tuple(rows[0][:2]) if rows else (None, None)
    found = [row[2:] for row in rows if row[3] is not None]
    at, last = found[limit - 1][:2] if len(found) > limit else edge
    onward = None if last is None else f"{at.isoformat()}~{last}"
    return [row[2:] for row in found[:limit]], onward


def _read_batch(row: Row) -> BatchRow:
    key, tenant, queue, identity, raw, revision, state, *rest = row
    return BatchRow(
        stored_public_id(key), key_text(key), tenant, queue, _parts(identity),
        _parts(raw or identity), revision, State(state), *rest,
    )  # fmt: skip


def letters(
    *,
    tenant: str | None = None,
    queue: str | None = None,
    failure: str | None = None,
    since: datetime | None = None,
    before: datetime | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Call[LetterPage]:
    """A page of dead letters, those that failed last first; `failure` is their class."""
    demand_page(limit)
    # Of one queue, every row that is looked at is shown unless its class is not the one.
    narrow = queue is None or failure is not None
    args = {
        "tenant": tenant,
        "queue": queue,
        "failure": failure,
        "since": since or "-infinity",
        "limit": limit + 1,
        "look": max(_LOOK["letters"] if narrow else 0, limit + 1),
    }
    return Call(
        _SQL["letters"], args | behind_time(after, before), lambda rows: _read_letters(rows, limit)
    )


def _read_letters(rows: list[Row], limit: int) -> LetterPage:
    shown, onward = _cut(rows, limit)
    return LetterPage(
        tuple(
            Letter(stored_public_id(key), tenant, queue, _parts(identity), *rest)
            for key, tenant, queue, identity, *rest in shown
        ),
        onward,
    )


def story(batch_id: UUID, *, payload: bool = False) -> Call[BatchDetail | None]:
    """The story of one batch; with `payload`, also its payload and result."""
    return _story_call(plain([batch_id]), "{}", payload=payload)


def story_of_key(key: str, *, payload: bool = False) -> Call[BatchDetail | None]:
    return _story_call("{}", _key_array([key]), payload=payload)


def story_of_identity(
    tenant: str,
    queue: str,
    identity: str | tuple[str, ...],
    revision: str | None = None,
    *,
    payload: bool = False,
) -> Call[BatchDetail | None]:
    """The story of the batch that `identity` stands for, in any spelling."""
    revision = canonical_revision(revision)
    keys = [derive_key(tenant, queue, form, revision) for form in _forms(identity)]
    return _story_call("{}", _key_array(keys), payload=payload)


def _key_array(keys: Sequence[str]) -> str:
    """Keys as PostgreSQL's bytea[]: the version byte, then the digest."""
    for key in keys:
        version, _, digest = key.partition(":")
        if version != "v1" or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise Refused(f"expected a key such as v1:<64 hexadecimal digits>, got {key[:80]!r}")
    return texts([rf"\x01{key[3:]}" for key in keys]) or "{}"


def _story_call(ids: str | None, keys: str, *, payload: bool) -> Call[BatchDetail | None]:
    args = {"ids": ids, "keys": keys, "payload": payload, "limit": STORY_ROWS_MAX}
    return Call(_SQL["story"], args, lambda rows: _read_story(rows[0]) if rows else None)


def _read_story(row: Row) -> BatchDetail:
    told = dict(zip(_STORY_COLUMNS, row, strict=True))
    ledger = tuple(_read_event(event) for event in _rows(told["events"]))
    return BatchDetail(
        **told
        | {
            "key": key_text(told["key"]),
            "fingerprint": told["fingerprint"].hex(),
            "identity": _parts(told["identity"]),
            "raw": _parts(told["raw"] or told["identity"]),
            "state": State(told["state"]),
            "events": ledger,
            "leases": leases_of(ledger),
            "refusals": tuple(_read_refusal(refusal) for refusal in _rows(told["refusals"])),
            "decisions": tuple(
                DecisionRow(_time(at), *rest) for at, *rest in _rows(told["decisions"])
            ),
        }
    )


def leases_of(events: Sequence[EventRow]) -> tuple[AttemptRow, ...]:
    """The leases that a batch's events tell of, in order."""
    found: list[AttemptRow] = []
    for event in events:
        if event.to_state is State.ASSIGNED:
            found.append(
                AttemptRow(event.attempt, event.epoch, event.number, event.actor, event.at)
            )
        elif event.to_state is State.RUNNING and found:
            found[-1] = replace(found[-1], started_at=event.at)
        elif found and found[-1].ended_at is None:
            found[-1] = replace(
                found[-1],
                ended_at=event.at,
                end=event.reason,
                ended_by=event.actor,
                detail=event.detail,
                late=event.late,
            )
    return tuple(found)


def outcomes(*, ids: Sequence[UUID], results: bool = False) -> Call[list[OutcomeRow | None]]:
    """Where batches stand, in the order of `ids`; None for an id that nobody knows (or may see)."""
    _bounded("outcomes", ids)

    def read(rows: list[Row]) -> list[OutcomeRow | None]:
        found = {row[0]: OutcomeRow(row[0], State(row[1]), *row[2:]) for row in rows}
        return [found.get(one) for one in ids]

    return Call(_SQL["outcomes"], {"ids": plain(ids), "results": results}, read)


def events(*, ids: Sequence[UUID], after: int = 0) -> Call[dict[UUID, list[EventRow]]]:
    """The ledger of batches by id, from the step behind `after` on; an unknown id has no steps."""
    _bounded("events", ids)

    def read(rows: list[Row]) -> dict[UUID, list[EventRow]]:
        found: dict[UUID, list[EventRow]] = {one: [] for one in ids}
        for batch_id, *columns in rows:
            found[batch_id].append(_read_event(columns))
        return found

    return Call(_SQL["events"], {"ids": plain(ids), "after": after}, read)


def queues(
    *,
    tenant: str | None = None,
    queue: str | None = None,
    bound: int = COUNT_BOUND,
    after: str | None = None,
    limit: int = 50,
) -> Call[QueuePage]:
    """A page of queues, settings and counts, by name; nothing is counted past `bound`.

    That is at most 100,000.
    """
    demand_page(limit)
    args = {"tenant": tenant, "queue": queue, "bound": bound, "limit": limit + 1}

    def read(rows: list[Row]) -> QueuePage:
        onward = "/".join(rows[limit - 1][:2]) if len(rows) > limit else None
        return QueuePage(tuple(_read_queue(row, bound) for row in rows[:limit]), onward)

    return Call(_SQL["queues"], args | behind_name(after), read)


def _read_queue(row: Row, bound: int) -> QueueSummary:
    *settings, ready, waiting, assigned, running, completed, failed, cancelled, cut = row

    def count(number: int, *, cut: bool = False) -> BoundedCount:
        return BoundedCount(min(number, bound), more=cut or number > bound)

    return QueueSummary(
        read_queue(tuple(settings)),
        count(ready),
        count(waiting),
        count(assigned, cut=cut),
        count(running, cut=cut),
        count(completed),
        count(failed),
        count(cancelled),
    )


def workers(
    *, since: datetime | None = None, after: str | None = None, limit: int = 50
) -> Call[WorkerPage]:
    """A page of workers, by login and name; `since` takes those that said hello since then."""
    demand_page(limit)
    args = {
        "since": since or "-infinity",
        "limit": limit + 1,  # one more tells whether there is another page
        "look": max(_LOOK["workers"], limit + 1),
    }

    def read(rows: list[Row]) -> WorkerPage:
        found = [
            WorkerRow(name, role, json.loads(free), *rest)
            for _, _, role, name, free, *rest in rows
            if name is not None
        ]
        role, name = rows[0][:2]
        if len(found) > limit:
            role, name = found[limit - 1].role, found[limit - 1].name
        onward = None if name is None else PART_SEPARATOR.join((role, name))
        return WorkerPage(tuple(found[:limit]), onward)

    return Call(_SQL["workers"], args | behind_worker(after), read)


def tenants() -> Call[list[str]]:
    """The tenants this role acts for; `*` alone for all of them."""
    return Call(_SQL["tenants"], {}, lambda rows: [tenant for (tenant,) in rows])


def _read_event(columns: Sequence[Any]) -> EventRow:
    version, at, before, now, *rest = columns
    when = _time(at) if isinstance(at, str) else at
    return EventRow(version, when, State(before) if before else None, State(now), *rest)


def _read_refusal(columns: Sequence[Any]) -> RefusalRow:
    told = dict(zip(_REFUSAL_COLUMNS, columns, strict=True))
    state, first, last = told["state"], _time(told["first_at"]), _time(told["last_at"])
    return RefusalRow(
        **told | {"state": state and State(state), "first_at": first, "last_at": last}
    )


def _rows(text: str | None) -> list[list[Any]]:
    return json.loads(text) if text else []


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _parts(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(text.split(PART_SEPARATOR))


def _bounded(what: str, ids: Sequence[UUID]) -> None:
    if len(ids) > LEASES_MAX:
        raise ValueError(f"{what}: at most {LEASES_MAX} ids a call, got {len(ids)}; send chunks")
