"""Every engine call, described once for sync and async: SQL, arguments, how to read the answer.

Nothing here does I/O. A `Call` is one statement, so in autocommit it is one transaction and one
round trip; inside a caller's transaction it is simply part of that. The SQL is in calls.sql.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import orjson

from helixqueue.engine.arrays import json_texts, numbers, plain, texts
from helixqueue.engine.statements import statements
from helixqueue.postgres.call import Call, Row
from helixqueue.records.claim_hints import Hint
from helixqueue.records.rows import (
    ActionResult,
    ClaimResult,
    LeaseRef,
    LeaseRow,
    QueueRow,
    QueueSettings,
    Receipt,
    Settlement,
    SubmissionRow,
    SubmittedRow,
    Token,
    WriteResult,
)
from helixqueue.states import State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


T = TypeVar("T")
_SQL = {name: one.sql for name, one in statements("helixqueue.engine", "calls.sql").items()}
# A look-up is five times as fast as calling the enum, and is done for every row.
_STATES = {state.value: state for state in State}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING = frozenset((None, ""))
_QUEUE_COLUMNS = [field.name for field in fields(QueueRow)]

# Bounds of one call: larger sets are cut into chunks by the caller.
SUBMIT_ROWS_MAX = 10_000
LEASES_MAX = 1_000


def submit(
    *,
    tenant: str,
    queue: str,
    profile: str,
    rows: Sequence[SubmissionRow],
    actor: str | None = None,
) -> Call[list[SubmittedRow]]:
    """Submit up to 10,000 rows; answers come in the order of the input."""
    _bounded("submit", len(rows), SUBMIT_ROWS_MAX)
    columns = list(zip(*rows, strict=True)) or [()] * len(SubmissionRow._fields)
    identity, payload, *options = columns
    # A column that says nothing is sent as null, not as a thousand nulls.
    raw, revision, priority, run_at, expires_at, limit_key, requires = (
        None if _NOTHING.issuperset(column) else column for column in options
    )
    return Call(
        _SQL["submit"],
        (
            *(tenant, queue, actor, profile, texts(identity), json_texts(payload)),
            *(texts(raw), texts(revision), plain(priority), _times(run_at), _times(expires_at)),
            *(texts(limit_key), texts(requires)),
        ),
        lambda answers: _read_submitted(answers, len(rows)),
    )


def _read_submitted(answers: list[Row], count: int) -> list[SubmittedRow]:
    placed: list[SubmittedRow | None] = [None] * count
    for place, decision, key, fingerprint, state, payload, note, differs in answers:
        placed[place - 1] = SubmittedRow(
            decision,
            None if key is None else Receipt.stored(key, fingerprint),
            None if state is None else _STATES[state],
            payload,
            note,
            tuple(differs) if differs else (),
        )
    return [one for one in placed if one is not None]


def note_refused(
    *, tenant: str, queue: str, refused: Sequence[tuple[bytes, str]], actor: str | None = None
) -> Call[None]:
    """Keep identities that broke their profile: raw bytes and why."""
    return Call(
        _SQL["note_refused"],
        (
            *(tenant, queue, actor),
            texts([rf"\x{raw.hex()}" for raw, _ in refused]),
            texts([why for _, why in refused]),
        ),
        lambda _: None,
    )


def claim(
    *,
    worker: str,
    request: UUID,
    queues: Sequence[str],
    count: int,
    free: dict[str, Any] | None = None,
    start: bool = False,
    lease_seconds: float | None = None,
    hints: Sequence[Hint] = (),
    settle: Sequence[Settlement] = (),
) -> Call[ClaimResult]:
    """Take up to `count` leases; settle what is finished and start what is taken, in one commit.

    The same `request` again gives the same leases again: repeat with it when an answer was lost.
    """
    _bounded("claim", count, LEASES_MAX)
    return Call(
        _SQL["claim"],
        (
            worker,
            request,
            texts(queues),
            count,
            _jsonb(free),
            start,
            lease_seconds,
            *(_hint_columns(hints) if hints else (None,) * 3),
            *(_settlement_columns(settle) if settle else (None,) * 10),
        ),
        lambda rows: _read_claimed(rows, settle),
    )


def _read_claimed(rows: list[Row], settle: Sequence[Settlement]) -> ClaimResult:
    """The first row is about the whole call (`helix.claim_header`), the others are leases."""
    header = orjson.loads(rows[0][6])
    if header["settled"] is None:
        done = State.COMPLETED
        settled = tuple([WriteResult(one.batch, "ok", None, done, late=False) for one in settle])
    else:
        settled = tuple(
            WriteResult(batch, answer, owner, _state(state), late, mismatch)
            for batch, answer, owner, state, late, mismatch in header["settled"]
        )
    if len(rows) == 1:
        return ClaimResult((), settled)
    token, state = Token(header["epoch"], header["nonce"], header["number"]), State(header["state"])
    queues = {
        int(queue): (tenant, name, lease_seconds, _EPOCH + timedelta(microseconds=deadline))
        for queue, (tenant, name, lease_seconds, deadline) in header["queues"].items()
    }
    leases = []
    for batch, queue, attempt, key, identity, revision, payload in rows[1:]:
        tenant, name, lease_seconds, deadline = queues[queue]
        row = (batch, token, key, tenant, name, identity, revision, payload, attempt, state)
        leases.append(LeaseRow(*row, deadline, lease_seconds))
    hints = tuple([Hint(*hint) for hint in header["hints"]])
    return ClaimResult(tuple(leases), settled, hints, header["more"])


def start(*, worker: str, held: Sequence[LeaseRef]) -> Call[list[WriteResult]]:
    return _hold_call("start", worker, held)


def renew(*, worker: str, held: Sequence[LeaseRef]) -> Call[list[WriteResult]]:
    return _hold_call("renew", worker, held)


def release(
    *, worker: str, held: Sequence[LeaseRef], detail: str | None = None
) -> Call[list[WriteResult]]:
    return _hold_call("release", worker, held, detail)


def _hold_call(
    name: str, worker: str, held: Sequence[LeaseRef], *more: str | None
) -> Call[list[WriteResult]]:
    _bounded(name, len(held), LEASES_MAX)
    return Call(_SQL[name], (worker, *_token_columns(held), *more), _read_answers)


def settle(*, worker: str, settlements: Sequence[Settlement]) -> Call[list[WriteResult]]:
    _bounded("settle", len(settlements), LEASES_MAX)
    return Call(
        _SQL["settle"],
        (worker, *_settlement_columns(settlements)),
        _read_answers,
    )


def _read_answers(rows: list[Row]) -> list[WriteResult]:
    return [
        WriteResult(batch, answer, owner, _state(state), late, mismatch)
        for batch, answer, owner, state, late, mismatch in rows
    ]


def cancel(
    *, ids: Sequence[UUID], reason: str, actor: str | None = None
) -> Call[list[ActionResult]]:
    return _people_call("cancel", ids, actor, reason)


def retry(
    *, ids: Sequence[UUID], reason: str, actor: str | None = None
) -> Call[list[ActionResult]]:
    return _people_call("retry", ids, actor, reason)


def redrive(
    *, ids: Sequence[UUID], reason: str, actor: str | None = None
) -> Call[list[ActionResult]]:
    """Retry dead letters; what is none (any more) is refused, and says where it stands."""
    call = retry(ids=ids, reason=reason, actor=actor)
    return replace(call, read=lambda rows: [_redriven(one) for one in call.read(rows)])


def _redriven(one: ActionResult) -> ActionResult:
    if one.answer != "illegal":
        return one
    return replace(one, answer="refused", note=one.note or f"no dead letter: it is {one.state}")


def take_back(
    *, ids: Sequence[UUID], reason: str, actor: str | None = None
) -> Call[list[ActionResult]]:
    """An operator's release: the leases end, at no cost of an attempt."""
    return _people_call("take_back", ids, actor, reason)


def erase(
    *, ids: Sequence[UUID], reason: str, actor: str | None = None
) -> Call[list[ActionResult]]:
    return _people_call("erase", ids, actor, reason)


def _people_call(
    name: str, ids: Sequence[UUID], actor: str | None, reason: str
) -> Call[list[ActionResult]]:
    _bounded(name, len(ids), LEASES_MAX)
    place = {batch_id: number for number, batch_id in enumerate(dict.fromkeys(ids))}

    def read(rows: list[Row]) -> list[ActionResult]:
        verdicts = [ActionResult(i, answer, _state(s), note) for i, answer, s, note in rows]
        return sorted(verdicts, key=lambda one: place[one.batch_id])

    return Call(_SQL[name], (plain(ids), actor, reason), read)


def reap(*, actor: str, limit: int = 1_000) -> Call[int]:
    return Call(_SQL["reap"], (actor, limit), _read_number)


def promote(*, limit: int = 1_000) -> Call[int]:
    return Call(_SQL["promote"], (limit,), _read_number)


def retire(
    *, tenant: str, queue: str, state: State, before: datetime, limit: int = 1_000
) -> Call[int]:
    """Take finished batches away; their keys stay and go on answering."""
    return Call(_SQL["retire"], (tenant, queue, state.value, before, limit), _read_number)


def recover(*, actor: str, reason: str) -> Call[tuple[int, int]]:
    """A new epoch; every lease ends. Returns the epoch and how many leases there were."""
    return Call(_SQL["recover"], (actor, reason), lambda rows: (rows[0][0], rows[0][1]))


def rotate_secret() -> Call[int]:
    """A new key for the fingerprints of new work; returns its number. For operators."""
    return Call(_SQL["rotate_secret"], (), _read_number)


def hello(*, worker: str, free: dict[str, Any] | None = None) -> Call[None]:
    """A worker says that it is there, now and then, so that people can see it."""
    return Call(_SQL["hello"], (worker, _jsonb(free)), lambda _: None)


def wait(*, worker: str, queues: Sequence[str], seconds: float) -> Call[list[str]]:
    """A worker says that it waits for work, or with 0 seconds that it does not; the channels."""
    return Call(_SQL["wait"], (worker, texts(queues), seconds), lambda rows: list(rows[0][0]))


_JSON_SETTINGS = {"requires", "payload_schema", "result_schema"}


def set_queue(
    *,
    tenant: str,
    queue: str,
    actor: str | None = None,
    reason: str | None = None,
    **settings: Unpack[QueueSettings],
) -> Call[QueueRow]:
    """Declare a queue or change some of its settings; what is not named stays as it is.

    People give a reason, which is kept with the change; a program that declares its queue has none.
    """
    known = QueueSettings.__annotations__
    unknown = settings.keys() - known.keys()
    if unknown:
        raise TypeError(f"unknown queue setting {min(unknown)!r}; known: {', '.join(known)}")
    given = {**settings}
    values = [
        _jsonb(given.get(name)) if name in _JSON_SETTINGS else given.get(name) for name in known
    ]
    return Call(
        _SQL["set_queue"], (tenant, queue, actor, *values, reason), lambda rows: read_queue(rows[0])
    )


def queue(*, tenant: str, queue: str) -> Call[QueueRow | None]:
    return Call(_SQL["queue"], (tenant, queue), lambda rows: read_queue(rows[0]) if rows else None)


def read_queue(row: Row) -> QueueRow:
    told = dict(zip(_QUEUE_COLUMNS, row, strict=True))
    for name in ("requires", "payload_schema", "result_schema"):
        told[name] = told[name] and json.loads(told[name])
    return QueueRow(**told)


def _state(word: str | None) -> State | None:
    return None if word is None else _STATES[word]


def _read_number(rows: list[Row]) -> int:
    return int(rows[0][0])


def _token_columns(held: Sequence[LeaseRef] | Sequence[Settlement]) -> tuple[str, ...]:
    return (
        numbers([one.batch for one in held]),
        numbers([one.token.epoch for one in held]),
        numbers([one.token.nonce for one in held]),
        numbers([one.token.number for one in held]),
    )


def _settlement_columns(settlements: Sequence[Settlement]) -> tuple[str | None, ...]:
    columns = zip(*settlements, strict=True) if settlements else [()] * len(Settlement._fields)
    _, _, outcome, result, failure, detail, permanent, after = columns
    return (
        *_token_columns(settlements),
        plain(outcome),
        # Who completes says nothing of failures, and most results are none: null for all of them.
        texts(result) if _says(result) else None,
        texts(failure) if _says(failure) else None,
        texts(detail) if _says(detail) else None,
        plain(permanent) if any(permanent) else None,
        plain(after) if _says(after) else None,
    )


def _says(column: Sequence[object]) -> bool:
    return any(value is not None for value in column)


def _hint_columns(hints: Sequence[Hint]) -> tuple[str, ...]:
    return tuple(numbers(column) for column in zip(*hints, strict=True))


def _times(values: Sequence[datetime | None] | None) -> str | None:
    if values is None:
        return None
    return texts([None if value is None else value.isoformat() for value in values])


def _jsonb(value: object) -> str | None:
    """As text: what a driver makes of JSON is the business of whoever set it up."""
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _bounded(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise ValueError(f"{what}: at most {limit} rows a call, got {count}; send it in chunks")
