"""The engine's calls, described once for sync and async: SQL, arguments, how to read the rows.

Nothing here does I/O. A `Call` is one statement: with autocommit it is one transaction and one
round trip, inside a caller's transaction it is part of that. The SQL is in calls.sql.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import starmap
from operator import itemgetter
from typing import Any, Final, NamedTuple, Unpack
from uuid import UUID

import orjson

from helixqueue.engine.arrays import json_texts, numbers, plain, text_columns, texts, times
from helixqueue.identity import PART_SEPARATOR
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.batch import ActionResult
from helixqueue.records.claim_hints import Hint
from helixqueue.records.device import FormerAllocation
from helixqueue.records.lease import ClaimResult, LeaseRef, LeaseRow, Settlement, Token, WriteResult
from helixqueue.records.queue import QueueDeletion, QueueRow, QueueSettings
from helixqueue.records.submission import Receipt, SubmissionRow, SubmittedRow
from helixqueue.states import State

_SQL = sql_texts("helixqueue.engine", "calls.sql")
# Five times as fast as calling the enum, and done for every row.
_STATES = {state.value: state for state in State}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DEFAULTS = frozenset((None, ""))
# Options of a submission that are not texts.
_ENCODERS: Final = {"priority": plain, "run_at": times, "expires_at": times}

# Limits of one call; the caller splits larger sets into chunks.
SUBMIT_ROWS_MAX = 10_000
CHUNK_ROWS = 100  # from here on, three more round trips do not matter
LEASES_MAX = 1_000


def submit(
    *,
    tenant: str,
    queue: str,
    profile: str,
    rows: Sequence[SubmissionRow],
    actor: str | None = None,
) -> Call[list[SubmittedRow]]:
    """Submit up to 10,000 rows; results come in the order of the input."""
    _demand_at_most("submit", len(rows), SUBMIT_ROWS_MAX)
    columns = list(zip(*rows, strict=True)) or [()] * len(SubmissionRow._fields)
    identity, payload, *options, source = columns
    has_sources = any(source)
    encoded = []
    for name, column in zip(SubmissionRow._fields[2:-1], options, strict=True):
        # A column of defaults is sent as one null instead of a thousand.
        is_default = _DEFAULTS.issuperset(column)
        encoded.append(None if is_default else _ENCODERS.get(name, texts)(column))
    return Call(
        _SQL["submit_from" if has_sources else "submit"],
        (
            *(tenant, queue, actor, profile),
            *(text_columns(source, 3) if has_sources else ()),
            *(texts(identity), json_texts(payload)),
            *encoded,
        ),
        read_submitted,
        is_chunk=len(rows) >= CHUNK_ROWS,
    )


def read_submitted(rows: list[Row]) -> list[SubmittedRow]:
    submitted = []
    for _, decision, key, fingerprint, state, payload, note, differs in sorted(
        rows, key=itemgetter(0)
    ):
        row = SubmittedRow(
            decision,
            None if key is None else Receipt.stored(key, fingerprint),
            None if state is None else _STATES[state],
            payload,
            note,
            tuple(differs) if differs else (),
        )
        submitted.append(row)
    return submitted


def note_refused(
    *, tenant: str, queue: str, refused: Sequence[tuple[bytes, str]], actor: str | None = None
) -> Call[None]:
    """Record identities that violate their profile: raw bytes and the reason."""
    return Call(
        _SQL["note_refused"],
        (
            *(tenant, queue, actor),
            texts([rf"\x{raw.hex()}" for raw, _ in refused]),
            texts([reason for _, reason in refused]),
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
    tenant: str | None = None,
) -> Call[ClaimResult]:
    """Claim up to `count` batches; settle finished ones and start the claimed ones in one commit.

    `tenant` restricts the claim to one tenant; None claims for every tenant of the login.

    Repeating a call with the same `request` returns the same leases, for lost replies.
    """
    _demand_at_most("claim", count, LEASES_MAX)
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
            *(map(numbers, zip(*hints, strict=True)) if hints else (None,) * 3),
            *(_settlement_columns(settle) if settle else (None,) * 10),
            tenant,
        ),
        partial(_read_claimed, settle),
    )


def _read_claimed(settle: Sequence[Settlement], rows: list[Row]) -> ClaimResult:
    """The first row describes the whole call (`helix.claim_header`), the others are leases."""
    header = orjson.loads(rows[0][6])
    if header["settled"] is None:
        settled = tuple(
            [WriteResult(s.batch, "ok", None, State.COMPLETED, late=False) for s in settle]
        )
    else:
        settled = tuple(
            WriteResult(batch, answer, owner, _state(state), late, mismatch)
            for batch, answer, owner, state, late, mismatch in header["settled"]
        )
    former = tuple(starmap(FormerAllocation, header.get("former", ())))
    if len(rows) == 1:
        return ClaimResult((), settled, former=former)
    token, state = Token(header["epoch"], header["nonce"], header["number"]), State(header["state"])
    queues = {
        int(queue): (tenant, name, lease_seconds, _EPOCH + timedelta(microseconds=deadline))
        for queue, (tenant, name, lease_seconds, deadline) in header["queues"].items()
    }
    devices = None if header.get("devices") is None else tuple(header["devices"])
    leases = []
    for batch, queue, attempt, key, identity, revision, payload, run in rows[1:]:
        tenant, name, lease_seconds, deadline = queues[queue]
        row = (batch, token, key, tenant, name, identity, revision, payload, attempt, state)
        leases.append(LeaseRow(*row, deadline, lease_seconds, devices=devices, run=run))
    hints = tuple(starmap(Hint, header["hints"]))
    return ClaimResult(tuple(leases), settled, hints, header["more"], former)


def start(*, worker: str, leases: Sequence[LeaseRef]) -> Call[list[WriteResult]]:
    return _lease_call("start", worker, leases)


def renew(*, worker: str, leases: Sequence[LeaseRef]) -> Call[list[WriteResult]]:
    return _lease_call("renew", worker, leases)


def release(
    *, worker: str, leases: Sequence[LeaseRef], detail: str | None = None
) -> Call[list[WriteResult]]:
    return _lease_call("release", worker, leases, detail)


def _lease_call(
    name: str, worker: str, leases: Sequence[LeaseRef], *more: str | None
) -> Call[list[WriteResult]]:
    _demand_at_most(name, len(leases), LEASES_MAX)
    batch, token = zip(*leases, strict=True) if leases else ((), ())
    return Call(_SQL[name], (worker, *_token_columns(batch, token), *more), _read_results)


def settle(*, worker: str, settlements: Sequence[Settlement]) -> Call[list[WriteResult]]:
    _demand_at_most("settle", len(settlements), LEASES_MAX)
    return Call(
        _SQL["settle"],
        (worker, *_settlement_columns(settlements)),
        _read_results,
    )


def _read_results(rows: list[Row]) -> list[WriteResult]:
    return [
        WriteResult(batch, answer, owner, _state(state), late, mismatch)
        for batch, answer, owner, state, late, mismatch in rows
    ]


def cancel(
    *, ids: Sequence[UUID], reason: str, actor: str | None = None, dry_run: bool = False
) -> Call[list[ActionResult]]:
    return _call_by_id("cancel", ids, actor, reason, dry_run)


def retry(
    *, ids: Sequence[UUID], reason: str, actor: str | None = None, dry_run: bool = False
) -> Call[list[ActionResult]]:
    return _call_by_id("retry", ids, actor, reason, dry_run)


def release_by_id(
    *, ids: Sequence[UUID], reason: str, actor: str | None = None
) -> Call[list[ActionResult]]:
    """Release leases on behalf of an operator; the attempt is not counted."""
    return _call_by_id("release_by_id", ids, actor, reason)


def erase(
    *, ids: Sequence[UUID], reason: str, actor: str | None = None, identity: bool = False
) -> Call[list[ActionResult]]:
    return _call_by_id("erase", ids, actor, reason, identity)


def _call_by_id(
    name: str, ids: Sequence[UUID], actor: str | None, reason: str, *more: bool
) -> Call[list[ActionResult]]:
    _demand_at_most(name, len(ids), LEASES_MAX)
    order = {batch_id: number for number, batch_id in enumerate(dict.fromkeys(ids))}

    def read(rows: list[Row]) -> list[ActionResult]:
        results = [
            ActionResult(
                batch_id, answer, _state(state), note, queue, identity_parts(identity), revision
            )
            for batch_id, answer, state, note, queue, identity, revision in rows
        ]
        return sorted(results, key=lambda result: order[result.batch_id])

    return Call(_SQL[name], (plain(ids), actor, reason, *more), read)


def reap(*, actor: str, limit: int = 1_000) -> Call[int]:
    return Call(_SQL["reap"], (actor, limit), _read_number)


def promote(*, limit: int = 1_000) -> Call[int]:
    return Call(_SQL["promote"], (limit,), _read_number)


def retire(
    *, tenant: str, queue: str, state: State, before: datetime, limit: int = 1_000
) -> Call[int]:
    """Delete finished batches; their keys remain and still answer repeats."""
    return Call(_SQL["retire"], (tenant, queue, state.value, before, limit), _read_number)


class Recovery(NamedTuple):
    epoch: int  # of every token from now on
    ended: int  # leases that were live
    doubted: int  # fenced effects that had started


def recover(*, actor: str | None, reason: str) -> Call[Recovery]:
    """Begin a new epoch and end every lease; for operators."""
    return Call(_SQL["recover"], (actor, reason), lambda rows: Recovery(*rows[0]))


def rotate_secret() -> Call[int]:
    """Create a new key for the fingerprints of new work; returns its number. For operators."""
    return Call(_SQL["rotate_secret"], (), _read_number)


def hello(
    *,
    worker: str,
    free: dict[str, Any] | None = None,
    tenant: str | None = None,
    ended: bool = False,
) -> Call[None]:
    """Report that a worker is alive or has ended; without `tenant`, to all of its login."""
    return Call(_SQL["hello"], (worker, _jsonb(free), tenant, ended), lambda _: None)


def wait(*, worker: str, queues: Sequence[str], seconds: float) -> Call[list[str]]:
    """Register a waiting worker, or with 0 seconds unregister it; returns the channels."""
    return Call(_SQL["wait"], (worker, texts(queues), seconds), lambda rows: list(rows[0][0]))


def set_queue(
    *,
    tenant: str,
    queue: str,
    actor: str | None = None,
    reason: str | None = None,
    paused: bool | None = None,
    **settings: Unpack[QueueSettings],
) -> Call[QueueRow]:
    """Declare a queue or change some of its settings; settings that are not named stay.

    An operator passes a reason, which is recorded; a program that declares its queue has none.
    """
    known = [*QueueSettings.__annotations__, "paused"]
    changed: dict[str, Any] = {**settings, "paused": paused}
    if unknown := changed.keys() - set(known):
        raise TypeError(f"unknown queue setting {min(unknown)!r}; known: {', '.join(known)}")
    # As texts: the parameters of the function have the types.
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in changed.items()
        if value is not None
    }
    named = "".join(f", p_{name} => %({name})s" for name in sorted(texts))
    return Call(
        _SQL["set_queue"].replace("/* settings */", named),
        {"tenant": tenant, "queue": queue, "actor": actor, "reason": reason, **texts},
        lambda rows: QueueRow(**queue_members(rows[0][0])),
    )


def delete_queue(
    *, tenant: str, queue: str, reason: str, actor: str | None = None
) -> Call[QueueDeletion]:
    """Delete a queue that never had a batch."""
    return Call(_SQL["delete_queue"], (tenant, queue, actor, reason), lambda rows: rows[0][0])


def queue(*, tenant: str, queue: str) -> Call[QueueRow | None]:
    return Call(
        _SQL["queue"],
        (tenant, queue),
        lambda rows: QueueRow(**queue_members(rows[0][0])) if rows else None,
    )


def queue_members(text: str) -> dict[str, Any]:
    """The members of a `QueueRow`, from JSON."""
    document = json.loads(text)
    return {
        name: float(document[name]) if kind == "float" else document[name]
        for name, kind in QueueRow.__annotations__.items()
    }


def identity_parts(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(text.split(PART_SEPARATOR))


def _state(name: str | None) -> State | None:
    return None if name is None else _STATES[name]


def _read_number(rows: list[Row]) -> int:
    return int(rows[0][0])


def _token_columns(batch: Sequence[int], token: Sequence[Any]) -> tuple[str, ...]:
    columns = zip(*token, strict=True) if token else [()] * len(Token._fields)
    return (numbers(batch), *map(numbers, columns))


def _settlement_columns(settlements: Sequence[Settlement]) -> tuple[str | None, ...]:
    columns = zip(*settlements, strict=True) if settlements else [()] * len(Settlement._fields)
    batch, token, outcome, *result_texts, permanent, after = columns
    count = len(settlements)
    return (
        *_token_columns(batch, token),
        plain(outcome),
        # Most settlements carry no failure and no result: one null for such a column.
        *[None if column.count(None) == count else texts(column) for column in result_texts],
        plain(permanent) if any(permanent) else None,
        None if after.count(None) == count else plain(after),
    )


def _jsonb(value: object) -> str | None:
    """As text: applications may configure how their driver adapts JSON."""
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _demand_at_most(name: str, count: int, limit: int) -> None:
    if count > limit:
        raise ValueError(f"{name}: expected at most {limit} rows per call, got {count}; split it")
