"""The writes of `helixqueue.engine.calls` and appends to ledgers, over HTTP.

The token determines tenant and actor, so both parameters are ignored. Requests whose repeats the
engine does not recognise carry a request key.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from helixqueue.errors import Refused
from helixqueue.identity import PART_SEPARATOR, key_bytes
from helixqueue.records.device import FormerAllocation
from helixqueue.records.lease import ClaimResult, LeaseRow, SealedToken, WriteResult
from helixqueue.records.ledger import AppendedRow
from helixqueue.records.submission import WITHOUT_IDENTITY, Receipt, SubmissionRow, SubmittedRow
from helixqueue.states import State
from helixqueue.transport.http.call import HttpCall, at, post, to_json
from helixqueue.transport.http.problem import error_from

if TYPE_CHECKING:
    from helixqueue.records.lease import LeaseRef, Settlement
    from helixqueue.records.ledger import NewEventRow

T = TypeVar("T")
# Limits of one request to the service.
BODY_BYTES_MAX = 1024 * 1024
SUBMIT_ROWS_MAX = 1_000
# A character has at most four bytes, and the other members of a row are short.
SUBMIT_CHARS_MAX = 180_000
ENVELOPE_BYTES = 8_192  # around one row: member names, options, the list
PAYLOAD_BYTES_MAX = BODY_BYTES_MAX - ENVELOPE_BYTES
CLAIM_MAX = 100
SETTLE_MAX = 100


def submit(
    *,
    tenant: str,  # noqa: ARG001 - the token determines it
    queue: str,
    profile: str,  # noqa: ARG001
    rows: Sequence[SubmissionRow],
    actor: str | None = None,  # noqa: ARG001
) -> HttpCall[list[SubmittedRow]]:
    """Submit up to 1,000 rows; answers are in the order of the input."""
    # The payloads are JSON text already.
    pieces = b",".join(_submission(row) for row in rows)
    return post(
        at("queues", queue, "chunks"),
        b'{"submissions":[' + pieces + b"]}",
        lambda document: [read_submitted(item) for item in document["submitted"]],
        needs_key=any(row.identity is None and row.source is None for row in rows),
    )


_OPTIONS = SubmissionRow._fields[3:]


def _submission(row: SubmissionRow) -> bytes:
    named = row.raw if row.raw is not None else row.identity
    parts = None if named is None else named.split(PART_SEPARATOR)
    document: dict[str, Any] = {
        "identity": parts[0] if parts is not None and len(parts) == 1 else parts
    }
    for name, value in zip(_OPTIONS, row[3:], strict=True):
        if value not in (None, ""):
            document[name] = value.isoformat() if isinstance(value, datetime) else value
    if row.requires is not None:
        document["requires"] = json.loads(row.requires)
    if row.source is not None:
        document["source"] = row.source._asdict()
    return to_json(document)[:-1] + b',"payload":' + row.payload.encode() + b"}"


def read_submitted(document: dict[str, Any]) -> SubmittedRow:
    receipt = document["receipt"]
    if receipt is not None:
        # The receipt derives the batch id from the key.
        receipt = Receipt.stored(key_bytes(receipt["key"]), bytes.fromhex(receipt["fingerprint"]))
    error = None
    if document.get("problem"):
        found = error_from(document["problem"])
        error = found if isinstance(found, Refused) else Refused(str(found))
    note = WITHOUT_IDENTITY if document.get("without_identity") else None
    return SubmittedRow(
        document["decision"], receipt, read_state(document["state"]), None, note,
        tuple(document["differs"]), error,
    )  # fmt: skip


def note_refused(
    *,
    tenant: str,  # noqa: ARG001
    queue: str,
    refused: Sequence[tuple[bytes, str]],
    actor: str | None = None,  # noqa: ARG001
) -> HttpCall[None]:
    """Record identities that violate their profile: raw bytes and reason."""
    document = [{"raw": raw.hex(), "why": why} for raw, why in refused]
    return post(at("queues", queue, "refused"), {"refused": document}, lambda _: None)


# Leases.


def claim(
    *,
    worker: str,
    request: UUID,
    queues: Sequence[str],
    count: int,
    free: dict[str, Any] | None = None,
    start: bool = False,
    lease_seconds: float | None = None,
    settle: Sequence[Settlement] = (),
    tenant: str | None = None,  # noqa: ARG001 - the token decides
) -> HttpCall[ClaimResult]:
    """Claim up to `count` batches; settle finished ones and start the claimed ones in one commit.

    The same `request` again gives the same leases again: repeat with it when an answer was lost.
    """
    document: dict[str, Any] = {
        "worker": worker,
        "request": str(request),
        "queues": list(queues),
        "count": count,
        "free": free,
        "start": start,
    }
    if lease_seconds is not None:
        document["lease_seconds"] = lease_seconds
    body = to_json(document)[:-1] + b',"settle":[' + _settlements(settle) + b"]}"
    return post(at("work", "claim"), body, partial(_read_claimed, settle))


def _read_claimed(settle: Sequence[Settlement], document: dict[str, Any]) -> ClaimResult:
    return ClaimResult(
        tuple(_read_lease(item) for item in document["leases"]),
        tuple(_read_answers("settled", settle, document)),
        more=document["more"],
        former=tuple(FormerAllocation(**item) for item in document["former"]),
    )


def _read_lease(document: dict[str, Any]) -> LeaseRow:
    identity = document["identity"]
    version, _, digest = document["key"].partition(":")
    return LeaseRow(
        UUID(document["batch_id"]).int,
        SealedToken(document["lease"]),
        bytes([int(version[1:])]) + bytes.fromhex(digest),
        document["tenant"],
        document["queue"],
        PART_SEPARATOR.join(identity) if isinstance(identity, list) else identity,
        document["revision"],
        to_json(document["payload"]).decode(),
        document["attempt"],
        State(document["state"]),
        datetime.fromisoformat(document["deadline"]),
        document["lease_seconds"],
        shares_nonce=False,
        run=document["run"],
        devices=None if document["devices"] is None else tuple(document["devices"]),
    )


def start(*, worker: str, leases: Sequence[LeaseRef]) -> HttpCall[list[WriteResult]]:
    return _hold("start", worker, leases)


def renew(*, worker: str, leases: Sequence[LeaseRef]) -> HttpCall[list[WriteResult]]:
    return _hold("renew", worker, leases)


def release(
    *, worker: str, leases: Sequence[LeaseRef], detail: str | None = None
) -> HttpCall[list[WriteResult]]:
    return _hold("release", worker, leases, **({} if detail is None else {"detail": detail}))


def _hold(
    verb: str, worker: str, leases: Sequence[LeaseRef], **more: str
) -> HttpCall[list[WriteResult]]:
    body = {"worker": worker, "leases": [lease_text(lease) for lease in leases], **more}
    return post(at("work", verb), body, partial(_read_answers, "answers", leases))


def settle(*, worker: str, settlements: Sequence[Settlement]) -> HttpCall[list[WriteResult]]:
    body = (
        to_json({"worker": worker})[:-1] + b',"settlements":[' + _settlements(settlements) + b"]}"
    )
    return post(at("work", "settle"), body, partial(_read_answers, "answers", settlements))


def _settlements(settlements: Sequence[Settlement]) -> bytes:
    return b",".join(write_settlement(item) for item in settlements)


def write_settlement(item: Settlement) -> bytes:
    document: dict[str, Any] = {
        "lease": lease_text(item),
        "outcome": item.outcome,
    }
    for name in ("failure", "detail", "after_seconds"):
        value = getattr(item, name)
        if value is not None:
            document[name] = value
    if item.permanent:
        document["permanent"] = True
    if item.result is None:
        return to_json(document)
    # The result is JSON text already.
    return to_json(document)[:-1] + b',"result":' + item.result.encode() + b"}"


def _read_answers(
    member: str, leases: Sequence[LeaseRef | Settlement], document: dict[str, Any]
) -> list[WriteResult]:
    batches = {lease_text(lease): lease.batch for lease in leases}
    return [
        WriteResult(
            batches[item["lease"]],
            item["answer"],
            item["owner"],
            read_state(item["state"]),
            item["late"],
            item["mismatch"],
        )
        for item in document[member]
    ]


def lease_text(lease: LeaseRef | Settlement) -> str:
    """A lease as its claim returned it."""
    if not isinstance(lease.token, SealedToken):
        raise Refused("expected a lease that was claimed over HTTP, got one of a database")
    return lease.token.text


def hello(
    *,
    worker: str,
    free: dict[str, Any] | None = None,
    tenant: str | None = None,  # noqa: ARG001 - the token determines it
    ended: bool = False,
) -> HttpCall[None]:
    """Report that a worker is alive, so that lists of workers show it with its resources."""
    body: dict[str, Any] = {"worker": worker, "ended": ended}
    if free is not None:
        free = dict(free)
        body |= {name: free.pop(name) for name in ("health", "progress") if name in free}
        body["free"] = free
    return post(at("work", "hello"), body, lambda _: None)


def expect(*, worker: str, queues: Sequence[str], seconds: float) -> HttpCall[str | None]:
    """Subscribe a worker to wake-ups, or with 0 seconds end it; returns the mark for `wait`."""
    body = {"worker": worker, "queues": list(queues), "seconds": seconds}
    return post(at("work", "expect"), body, lambda document: document["mark"])


def wait(
    *, worker: str, queues: Sequence[str], mark: str | None, seconds: float
) -> HttpCall[tuple[bool, str | None]]:
    """Wait for work submitted since `mark`; returns whether there was any, and a new mark."""
    return post(
        at("work", "wait"),
        {"worker": worker, "queues": list(queues), "mark": mark, "seconds": seconds},
        lambda document: (document["woken"], document["mark"]),
        seconds=seconds,
    )


def read_state(word: str | None) -> State | None:
    return None if word is None else State(word)


# User ledgers; payloads are sent as the JSON text that they are.


def append(
    *,
    tenant: str,  # noqa: ARG001 - the token determines it
    ledger: str,
    rows: Sequence[NewEventRow],
    actor: str | None = None,  # noqa: ARG001
) -> HttpCall[list[AppendedRow]]:
    """Append up to 1,000 events. The engine recognises repeats: no request key is needed."""
    pieces = b",".join(_event(row) for row in rows)
    return post(
        at("ledgers", ledger, "chunks"),
        b'{"events":[' + pieces + b"]}",
        lambda document: [_read_appended(item) for item in document["appended"]],
        needs_key=False,
    )


def _event(row: NewEventRow) -> bytes:
    parts = row.entity.split(PART_SEPARATOR)
    entity = parts if len(parts) > 1 else row.entity
    document = {"entity": entity, "seq": row.seq, "kind": row.kind, "node": row.node}
    # The payload is JSON text already.
    return to_json(document)[:-1] + b',"payload":' + row.payload.encode() + b"}"


def _read_appended(document: dict[str, Any]) -> AppendedRow:
    members = {"rules": tuple(document["rules"]), "diff": tuple(document["diff"])}
    return AppendedRow(**document | members)
