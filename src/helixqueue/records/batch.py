"""A batch: its row in a list, its detail with history, its outcome, and answers to actions on it.

Identities are tuples of their parts, `()` for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from helixqueue.records.lease import ResultWord
from helixqueue.records.parameter import Param, Payload
from helixqueue.states import State

# A service replaces such a number: it counts the claims of all tenants.
TokenNumber = Annotated[int, Param("Number of the claim, in its epoch.", sealed=True)]
Text = Annotated[str | None, Payload]
Place = Literal["ready", "waiting", "active", "outcome", "retired"]
Cause = Literal["delay", "limit", "paused", "held"]


class JsonText(str):
    """JSON that was not parsed: a service passes payloads and results on as they are stored."""

    __slots__ = ()


def identity_value(parts: tuple[str, ...]) -> str | list[str] | None:
    """The JSON of an identity: a string, a list of strings if it has several parts, or null."""
    return (parts[0] if len(parts) == 1 else list(parts)) if parts else None


def identity_of(value: object) -> tuple[str, ...]:
    """The parts of an identity, from its JSON or from parts."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return tuple(value)
    if value is None:
        return ()
    raise ValueError("expected a string, a list of strings or null")


class _IdentityJson:
    """Tells pydantic how the HTTP service sends an identity, and how its client reads it."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> Any:  # noqa: ANN401
        from pydantic_core import core_schema  # noqa: PLC0415 - only the service needs it

        return core_schema.no_info_plain_validator_function(
            identity_of,
            serialization=core_schema.plain_serializer_function_ser_schema(identity_value),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: object, handler: object) -> dict[str, Any]:
        texts = {"type": "array", "items": {"type": "string"}}
        return {"anyOf": [{"type": "string"}, texts, {"type": "null"}]}


IdentityParts = Annotated[tuple[str, ...], _IdentityJson]


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch in a list: its submission and its state."""

    batch_id: UUID
    key: str
    tenant: str
    queue: str
    identity: IdentityParts  # canonical
    raw: IdentityParts  # as submitted
    revision: str
    state: State
    attempt: int
    priority: int
    created_at: datetime
    worker: str | None  # worker that holds the batch
    deadline: datetime | None
    cause: Cause | None  # why a PENDING batch is not claimable
    due: datetime | None
    finished_at: datetime | None
    finished_by: str | None
    failure: str | None  # failure class of a FAILED batch
    detail: Text  # of the worker
    last_worker: str | None  # worker that held a finished batch last
    refused: bool = False  # a late write is on record


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event of a batch in the ledger."""

    version: int
    at: datetime
    from_state: State | None
    to_state: State
    reason: str
    actor: str
    attempt: int
    epoch: int | None
    number: TokenNumber | None
    detail: Text
    late: bool


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One lease of a batch, from claim to end. A released lease does not count as an attempt."""

    attempt: int
    epoch: int | None
    number: TokenNumber | None
    worker: str
    claimed_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None  # None: the lease is live
    end: str | None = None  # the reason of the event that ended it
    ended_by: str | None = None
    detail: Text = None
    late: bool = False
    ran_on: Text = None  # the host and the devices that it held


def attempts_of(events: Sequence[EventRow]) -> tuple[AttemptRow, ...]:
    """The attempts of a batch, from its events in order."""
    attempts: list[AttemptRow] = []
    for event in events:
        if event.to_state is State.ASSIGNED:
            begun = (event.attempt, event.epoch, event.number, event.actor, event.at)
            attempts.append(AttemptRow(*begun, ran_on=event.detail))
        elif event.to_state is State.RUNNING and attempts:
            ran_on = event.detail or attempts[-1].ran_on
            attempts[-1] = replace(attempts[-1], started_at=event.at, ran_on=ran_on)
        elif attempts and attempts[-1].ended_at is None:
            attempts[-1] = replace(
                attempts[-1],
                ended_at=event.at,
                end=event.reason,
                ended_by=event.actor,
                detail=event.detail,
                late=event.late,
            )
    return tuple(attempts)


@dataclass(frozen=True, slots=True)
class RefusalRow:
    """A refused write with a stale token, with both workers."""

    operation: str
    worker: str
    owner: str | None
    epoch: int
    number: TokenNumber
    owner_number: TokenNumber | None
    state: State | None
    why: str
    times: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision that changed no state: a duplicate, a conflict, an erasure.

    Equal answers of one minute are one row: `at` is the first, `last_at` the last of `times`.
    """

    at: datetime
    kind: str
    actor: str
    detail: Text
    times: int
    last_at: datetime


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A member of a payload that differs, as JSON texts of at most 200 characters."""

    name: str | None  # None: the whole payload
    stored: str | None  # None: there was none
    received: str | None


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """How the payload of a refused conflict differs from the stored one; the first 20 members."""

    at: datetime
    actor: str
    changes: Annotated[tuple[MemberChange, ...] | None, Payload]


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A delivery that asked for the batch, and the decision about its first arrival."""

    kind: str
    name: str
    id: str
    decision: str
    times: int
    first_at: datetime
    last_at: datetime
    actor: str


@dataclass(frozen=True, slots=True)
class BatchDetail:
    """Everything recorded about one batch; after retention, its key, state and decisions."""

    batch_id: UUID
    key: str
    fingerprint: str
    tenant: str
    queue: str | None
    identity: IdentityParts
    raw: IdentityParts
    profile: str | None
    revision: str | None
    priority: int | None
    run_at: datetime | None
    expires_at: datetime | None
    limit_key: str | None
    actor: str | None  # submitter
    created_at: datetime | None
    state: State
    place: Place
    version: int
    attempt: int
    worker: str | None
    deadline: datetime | None
    epoch: int | None
    number: TokenNumber | None
    cause: Cause | None
    due: datetime | None
    finished_at: datetime | None
    finished_by: str | None
    failure: str | None
    detail: Text
    retired_at: datetime | None
    erased: bool  # the payload was deleted, by erasure or retention
    payload: Annotated[Any, Payload]  # JSON, if requested
    result: Annotated[Any, Payload]  # JSON, if requested
    events: tuple[EventRow, ...]
    attempts: tuple[AttemptRow, ...]
    refusals: tuple[RefusalRow, ...]
    decisions: tuple[DecisionRow, ...]
    differences: tuple[DifferenceRow, ...]  # of its conflicts; at most five
    sources: tuple[SourceRow, ...]
    has_payload: bool  # whether `payload` is one; tells null from none
    has_result: bool


@dataclass(frozen=True, slots=True)
class BatchContent:
    """A batch with its receipt, payload and result, for exports. Fields are those of the detail."""

    batch_id: UUID
    key: str
    fingerprint: str
    tenant: str
    queue: str
    identity: IdentityParts
    raw: IdentityParts
    profile: str
    revision: str
    state: State
    version: int
    attempt: int
    priority: int
    created_at: datetime
    actor: str  # submitter
    finished_at: datetime | None
    finished_by: str | None
    failure: str | None
    detail: str | None
    payload: Any  # JSON; None: erased
    result: Any


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """The state of a batch, and its outcome once it has finished."""

    batch_id: UUID
    state: State
    attempt: int | None
    finished_at: datetime | None  # None: not finished, or retired
    finished_by: str | None
    failure: str | None
    detail: Text
    result: Annotated[Any, Payload]  # JSON, if requested
    late: bool
    queue: str | None  # of a finished batch; determines the type of the result
    has_result: bool  # whether `result` is one; tells null from none


def failure_text(failure: str | None, detail: str | None, *, between: str = " ") -> str:
    """Class and message of a failure; a traceback begins with the class already."""
    message = (detail or "").strip()
    if failure and message.partition(":")[0].rpartition(".")[2] != failure:
        return f"{failure}{between}{message}" if message else failure
    return message


@dataclass(frozen=True, slots=True)
class FailureCause:
    """FAILED batches of one queue with the same failure class and, up to names, the same text.

    In the text, (identity) and N stand for identities and numbers.
    """

    tenant: str
    queue: str
    failure: str
    text: Text
    batches: int
    example: IdentityParts  # identity of the newest
    revision: str
    newest: datetime | None


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
    identity: IdentityParts = ()
    revision: str | None = None
