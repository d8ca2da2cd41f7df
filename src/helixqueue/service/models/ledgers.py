"""Bodies of appends to user ledgers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, StrictInt

from helixqueue.records.ledger import AppendDecision, Appended, NewEvent
from helixqueue.records.machine import KIND_PATTERN
from helixqueue.service.models.requests import IdentityText, Json, RequestModel, printable
from helixqueue.service.settings import MAX_ROWS

KindText = Annotated[str, Field(pattern=KIND_PATTERN, examples=["CONFIRMED"])]
EntityValue = IdentityText | Annotated[tuple[IdentityText, ...], Field(min_length=1, max_length=16)]


class AppendRequest(RequestModel):
    entity: EntityValue = Field(examples=["drone-7"])
    seq: Annotated[StrictInt, Field(ge=1, lt=2**53)]  # JSON has no greater exact numbers
    kind: KindText
    payload: Json = Field(None, description="Any JSON.", examples=[{"pad": "north"}])
    node: Annotated[str, Field(min_length=1, max_length=255), AfterValidator(printable)] | None = (
        Field(None, description="Where the event was observed.", examples=["alp-1"])
    )

    def event(self) -> NewEvent:
        return NewEvent(self.entity, self.seq, self.kind, self.payload, self.node)


class AppendManyRequest(RequestModel):
    events: Annotated[list[AppendRequest], Field(min_length=1, max_length=MAX_ROWS, fail_fast=True)]


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


def appended(answer: Appended, *, values: bool) -> AppendedResponse:
    """`values` includes those of payloads."""
    changes = answer.diff
    if not values:
        changes = tuple({name: op[name] for name in ("op", "path")} for op in changes)
    return AppendedResponse(
        **answer._asdict() | {"rules": list(answer.rules), "diff": list(changes)}
    )
