"""Bodies of the operations about user ledgers and feeds."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, StrictBool, StrictInt, model_validator

from helixqueue.records.ledger import (
    AppendDecision,
    Appended,
    EntityName,
    FeedEvent,
    FeedRow,
    LedgerEvent,
    LedgerRow,
    NewEvent,
)
from helixqueue.records.machine import KIND_PATTERN, KINDS_MAX
from helixqueue.service.models.requests import (
    IdentityText,
    Json,
    Name,
    Reason,
    RequestModel,
    Time,
    printable,
)
from helixqueue.service.settings import MAX_PAGE, MAX_ROWS

KindText = Annotated[str, Field(pattern=KIND_PATTERN, examples=["CONFIRMED"])]
EntityValue = IdentityText | Annotated[list[IdentityText], Field(min_length=1, max_length=16)]
Pointer = Annotated[str, Field(pattern=r"^/", max_length=255, examples=["/trace_id"])]
FeedCursor = Annotated[str, Field(min_length=1, max_length=120)]


class LedgerRequest(RequestModel):
    """The rules of a ledger. A later declaration may add kinds and arrows."""

    arrows: Annotated[
        dict[KindText, Annotated[list[KindText], Field(max_length=KINDS_MAX)]],
        Field(min_length=1, max_length=KINDS_MAX),
    ] = Field(description="The kinds that may follow each kind; none for a terminal kind.")
    initial: Annotated[list[KindText], Field(min_length=1, max_length=KINDS_MAX)] | None = Field(
        None, description="Kinds of first events; default: those that no arrow reaches."
    )
    strict: StrictBool = Field(
        default=True, description="Refuse events that violate the rules, or record the violations."
    )
    bind_payload: StrictBool = Field(
        default=False, description="Make the payload a part of an event's identity."
    )
    ignore: Annotated[list[Pointer], Field(max_length=100)] = Field(
        default_factory=list, description="Payload fields that do not count in comparisons."
    )


class AppendRequest(RequestModel):
    entity: EntityValue = Field(examples=["drone-7"])
    seq: Annotated[StrictInt, Field(ge=1, lt=2**53)]  # JSON has no greater exact numbers
    kind: KindText
    payload: Json = Field(None, description="Any JSON.", examples=[{"pad": "north"}])
    node: Annotated[str, Field(min_length=1, max_length=255), AfterValidator(printable)] | None = (
        Field(None, description="Where the event was observed.", examples=["alp-1"])
    )

    def event(self) -> NewEvent:
        entity = tuple(self.entity) if isinstance(self.entity, list) else self.entity
        return NewEvent(entity, self.seq, self.kind, self.payload, self.node)


class AppendManyRequest(RequestModel):
    events: Annotated[list[AppendRequest], Field(min_length=1, max_length=MAX_ROWS, fail_fast=True)]


class FeedRequest(RequestModel):
    """What the feed follows: a ledger, or the steps of batches of one queue or of all queues."""

    ledger: Name | None = None
    queue: Name | None = Field(None, description="Default: all queues, if there is no ledger.")
    start: Literal["beginning", "now"] = Field(
        "beginning", description="Where a new feed starts; an existing one stays where it is."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.ledger is not None and self.queue is not None:
            raise ValueError("expected a ledger or a queue, got both")
        return self


class ConfirmRequest(RequestModel):
    """Events that a page returned: from its `position` to the `position` of the last one."""

    after: FeedCursor
    to: FeedCursor
    count: Annotated[StrictInt, Field(ge=1, le=MAX_PAGE)]


class RewindRequest(RequestModel):
    reason: Reason
    since: Time | None = Field(None, description="Events at or after this time; default: all.")


class LedgersResponse(BaseModel):
    ledgers: list[LedgerRow]


class AppendedResponse(BaseModel):
    decision: AppendDecision
    key: str | None
    version: int | None = Field(description="Number of the event within its entity.")
    state: str | None = Field(description="State of the entity now.")
    seq: int | None = Field(description="Greatest seq of the entity.")
    rules: list[str] = Field(description="Violated rules.")
    diff: list[dict[str, Any]] = Field(description="Of a conflict; values need the scope payloads.")


class AppendManyResponse(BaseModel):
    appended: list[AppendedResponse]


class EntityEventsResponse(BaseModel):
    events: list[LedgerEvent] = Field(description="Payloads need the scope payloads, else null.")


class FeedEventResponse(BaseModel):
    key: str = Field(description="Equal for equal events: the idempotency key of the effect.")
    entity: EntityName
    seq: int
    kind: str
    payload: Any
    node: str | None
    actor: str
    at: datetime
    violations: list[str]
    position: str = Field(description="The position after this event.")


class FeedEventsResponse(BaseModel):
    position: str | None = Field(description="The position before the first event.")
    events: list[FeedEventResponse]


class FeedResponse(BaseModel):
    tenant: str
    name: str
    ledger: str | None
    queue: str | None
    paused: bool
    delivered: int
    lag: int = Field(description="Events after its position; at most 10,000 are counted.")
    oldest_at: datetime | None
    moved_at: datetime | None
    holder: str | None


class FeedsResponse(BaseModel):
    feeds: list[FeedResponse]


class MovedResponse(BaseModel):
    moved: bool = Field(description="False: the feed is not at `after` any more, or paused.")


def appended(answer: Appended, *, values: bool) -> AppendedResponse:
    """`values` includes those of payloads."""
    changes = answer.diff
    if not values:
        changes = tuple({name: op[name] for name in ("op", "path")} for op in changes)
    return AppendedResponse(
        **answer._asdict() | {"rules": list(answer.rules), "diff": list(changes)}
    )


def feed(row: FeedRow) -> FeedResponse:
    members = asdict(row)
    del members["position"]
    return FeedResponse(**members)


def feed_event(event: FeedEvent, position: str) -> FeedEventResponse:
    return FeedEventResponse(
        key=event.key,
        entity=event.entity,
        seq=event.seq,
        kind=event.kind,
        payload=event.payload,
        node=event.node,
        actor=event.actor,
        at=event.at,
        violations=list(event.violations),
        position=position,
    )
