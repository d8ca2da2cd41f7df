"""Reads of batches: lists, one batch with its history, its outcome, and causes of failures."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from helixqueue.errors import InvalidIdentity, NoSuchBatch, Refused
from helixqueue.identity import check_name
from helixqueue.operations import engine
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.operation import operation
from helixqueue.queues import Queue
from helixqueue.records.batch import (
    BatchDetail,
    BatchRow,
    FailureCause,
    OutcomeRow,
    identity_of,
)
from helixqueue.records.page import Page
from helixqueue.records.parameter import (
    MAX_PAGE,
    NAME_PATTERN,
    Cursor,
    IdentityText,
    Limit,
    Param,
    aware,
)
from helixqueue.records.submission import Receipt
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations

# One page of causes groups so many batches.
GROUPED_MAX: Final = 10_000
_DIGITS: Final = re.compile(r"\d+")
Grouped = Annotated[
    int, Param("Maximum number of batches to group.", least=1, most=GROUPED_MAX, metavar="N")
]
_TEXT_MAX: Final = 300


def batch_id_of(batch: object) -> uuid.UUID:
    """The id of a batch, from its receipt, its row or the id itself."""
    batch_id = batch.batch_id if isinstance(batch, Receipt | BatchRow) else batch
    if not isinstance(batch_id, uuid.UUID):
        hint = "; pass its .receipt" if hasattr(batch, "receipt") else ""
        raise Refused(f"expected a receipt or a batch's UUID, got {ascii(batch)[:80]}{hint}")
    return batch_id


def read_state(word: State | str) -> State:
    try:
        return State(word.upper())
    except (ValueError, AttributeError):
        raise Refused(f"state: expected one of {', '.join(State)}; got {word!r}") from None


def queue_name(queue: Queue[Any, Any] | str) -> str:
    return queue.name if isinstance(queue, Queue) else check_name("queue", queue)


# Python callers may pass objects for what HTTP and the command line send as texts.
if TYPE_CHECKING:
    BatchId = Receipt[Any] | uuid.UUID | BatchRow
    QueueFilter = Queue[Any, Any] | str
    StateFilter = State | str
    IdentityFilter = str | tuple[str, ...]
else:
    BatchId = Annotated[uuid.UUID, Param("Id of the batch.", metavar="BATCH", read=batch_id_of)]
    QueueFilter = Annotated[
        str,
        Param(
            "Only batches of this queue.",
            "basecall",
            pattern=NAME_PATTERN,
            metavar="NAME",
            read=queue_name,
        ),
    ]
    StateFilter = Annotated[State, Param(f"{', '.join(State)}.", metavar="STATE", read=read_state)]
    IdentityFilter = Annotated[
        list[IdentityText],
        Param(
            "Only batches of this identity, in any spelling; repeated for several parts.",
            length=16, metavar="TEXT", read=lambda value: list(identity_of(value)),
        ),
    ]  # fmt: skip
Failure = Annotated[
    str,
    Param("Only FAILED batches of this failure class.", "OutOfMemory", length=255, metavar="CLASS"),
]
Worker = Annotated[
    str,
    Param(
        "Only batches that this worker holds or lost; with a finished state, that it finished.",
        length=255, metavar="NAME",
    ),
]  # fmt: skip
Since = Annotated[datetime, Param("From this time.", check=aware, metavar="TIME")]
Until = Annotated[datetime, Param("Before this time.", check=aware, metavar="TIME")]
WithPayload = Annotated[
    bool, Param("Include payload and result; needs the scope payloads.", option="--payload")
]
WithResult = Annotated[
    bool,
    Param("Include the result; needs the scope payloads. Default: if the token permits it."),
]


@operation("GET /v1/batches", scope="read", raises=[InvalidIdentity])
def list_batches(
    operations: Operations,
    *,
    queue: QueueFilter | None = None,
    state: StateFilter | None = None,
    failure: Failure | None = None,
    identity: IdentityFilter | None = None,
    worker: Worker | None = None,
    since: Since | None = None,
    until: Until | None = None,
    after: Cursor | None = None,
    limit: Limit = 50,
) -> Instructions[Page[BatchRow]]:
    """List batches, newest first.

    Finished states are listed by the time of their end, all others by the time of submission;
    `since` and `until` (exclusive) refer to that time. `failure` implies the state FAILED. All
    filters apply. A page reads a limited number of batches: it may be short or empty and still have
    a `next`. Payloads are not included. Failure details of workers need the scope payloads.
    """
    parts = None if identity is None else identity_of(identity)
    return operations.ask(
        engine.reads.batches(
            tenant=operations.tenant or None,
            queue=None if queue is None else queue_name(queue),
            state=None if state is None else read_state(state),
            failure=failure,
            identity=parts[0] if parts and len(parts) == 1 else parts,
            worker=worker,
            since=since,
            until=until,
            after=after,
            limit=limit,
        )
    )


@operation("GET /v1/batches/{batch_id}", scope="read", raises=[NoSuchBatch])
def show_batch(
    operations: Operations, batch_id: BatchId, *, payload: WithPayload = False
) -> Instructions[BatchDetail]:
    """Show a batch with its attempts, events, refusals and decisions.

    Also shows refused writes with both workers, repeated submissions, and both spellings of the
    identity. Includes finished batches as long as the ledger is kept.
    """
    if payload:
        operations.require_payloads()
    wanted = batch_id_of(batch_id)
    detail = yield from operations.ask(
        engine.reads.batch_detail(wanted, payload=payload, as_text=operations.keeps_json)
    )
    if detail is None:
        raise operations.no_such_batch(wanted)
    return detail


@operation(
    "GET /v1/batches/{batch_id}/outcome",
    scope="read",
    raises=[NoSuchBatch],
)
def show_outcome(
    operations: Operations, batch_id: BatchId, *, result: WithResult | None = None
) -> Instructions[OutcomeRow]:
    """Show the state and the result of a batch.

    Cheaper than the whole batch; for clients that wait. The result needs the scope payloads.
    """
    if result:
        operations.require_payloads()
    with_result = operations.sees_payloads and result is not False
    wanted = batch_id_of(batch_id)
    [found] = yield from operations.ask(
        engine.reads.outcomes(ids=[wanted], results=with_result, as_text=operations.keeps_json)
    )
    if found is None:
        raise operations.no_such_batch(wanted)
    return found


@operation(
    "GET /v1/causes",
    scope="read",
    computes=True,
)
def list_causes(
    operations: Operations,
    *,
    queue: QueueFilter | None = None,
    failure: Failure | None = None,
    since: Since | None = None,
    until: Until | None = None,
    after: Cursor | None = None,
    limit: Grouped = GROUPED_MAX,
) -> Instructions[Page[FailureCause]]:
    """Group FAILED batches by failure class and message.

    The newest `limit`; `next` continues with those that failed before them. In the messages,
    (identity) and N stand for identities and numbers. Messages need the scope payloads.
    """
    causes: dict[tuple[str, str, str, str], FailureCause] = {}
    read = 0
    while read < limit:
        page = yield from list_batches(
            operations, queue=queue, state=State.FAILED, failure=failure, since=since, until=until,
            after=after, limit=min(MAX_PAGE, limit - read),
        )  # fmt: skip
        for row in page.rows:
            key = (row.tenant, row.queue, row.failure or "", _cause_text(row))
            found = causes.get(key) or FailureCause(
                *key, 0, row.identity, row.revision, row.finished_at
            )
            causes[key] = replace(found, batches=found.batches + 1)
        read += len(page.rows)
        after = page.next
        if after is None:
            break
    return Page(tuple(sorted(causes.values(), key=lambda cause: -cause.batches)), after)


def _cause_text(row: BatchRow) -> str:
    """The first line of the message, without what differs from batch to batch."""
    text = (row.detail or "").strip().partition("\n")[0][:_TEXT_MAX]
    for part in sorted({*row.identity, *row.raw}, key=len, reverse=True):
        text = text.replace(part, "(identity)")
    return _DIGITS.sub("N", text)
