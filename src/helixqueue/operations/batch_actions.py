"""Actions of operators on batches: retry, cancel, release and erase, by id or by filter.

The ledger stores their reason and actor. Actions on several batches run in pages: each page is one
call, and each batch gets its own answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Final,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
)

from helixqueue.errors import (
    IllegalTransition,
    InvalidIdentity,
    NoSuchBatch,
    Refused,
    Retryable,
)
from helixqueue.operations import engine
from helixqueue.operations.batch_reads import (
    BatchId,
    Failure,
    IdentityFilter,
    QueueFilter,
    Since,
    StateFilter,
    Until,
    Worker,
    batch_id_of,
    list_batches,
    read_state,
)
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.operation import operation
from helixqueue.records.batch import ActionResult, BatchRow
from helixqueue.records.page import Page
from helixqueue.records.parameter import (
    MAX_PAGE,
    ActionLimit,
    Cursor,
    IdentityText,
    Param,
    Reason,
    check_value,
)
from helixqueue.records.submission import Receipt
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import AnyCall
    from helixqueue.operations.operation import Operation

P = ParamSpec("P")
T = TypeVar("T")
IDS_MAX: Final = 1_000
SELECTED: Final = 100  # batches that one call selects by filters, unless its limit says otherwise
BatchRef = Receipt[Any] | uuid.UUID | BatchRow


def _batch_ids(batches: Iterable[object]) -> list[uuid.UUID]:
    return [batch_id_of(batch) for batch in batches]


if TYPE_CHECKING:
    BatchIds = Sequence[BatchRef]
    UnfinishedState = StateFilter
    Identity = IdentityFilter
else:
    BatchIds = Annotated[
        list[uuid.UUID],
        Param(
            "Batches by id, in place of filters.", length=IDS_MAX, metavar="BATCH", read=_batch_ids
        ),
    ]
    UnfinishedState = Annotated[
        Literal["PENDING", "ASSIGNED", "RUNNING"],
        Param(
            "PENDING, ASSIGNED or RUNNING; required with filters.", metavar="STATE", read=read_state
        ),
    ]
    Identity = Annotated[
        IdentityText | Annotated[list[IdentityText], Param("", length=16)],
        Param("Only batches of this identity, in any spelling.", metavar="TEXT"),
    ]
DryRun = Annotated[bool, Param("Show what would happen without changing anything.")]
AndIdentity = Annotated[bool, Param("Delete the identity as well.")]


class _Filters(TypedDict, total=False):
    queue: QueueFilter | None
    identity: Identity | None
    worker: Worker | None
    since: Since | None
    until: Until | None


class FailedFilters(_Filters, total=False):
    """Which FAILED batches to retry."""

    failure: Failure | None


class UnfinishedFilters(_Filters, total=False):
    """Which unfinished batches to cancel."""

    state: UnfinishedState | None


@operation("POST /v1/batches/retry", scope="operate", raises=[InvalidIdentity], fenced=True)
def retry_batches(
    operations: Operations,
    batch_ids: BatchIds | None = None,
    *,
    reason: Reason,
    after: Cursor | None = None,
    limit: ActionLimit | None = None,
    dry_run: DryRun = False,
    **filters: Unpack[FailedFilters],
) -> Instructions[Page[ActionResult]]:
    """Retry failed batches by id or by filter.

    They become PENDING, with all their attempts again. Each batch has its own answer: `ok`,
    `repeat`, `illegal` for a batch that is not FAILED or has no payload any more, or `refused` for
    an unknown batch. Filters take the latest failures first; `since` and `until` refer to the time
    of failure. A batch that fails again meanwhile is not taken twice; one response has 100 batches
    unless `limit` is set. A dry run has the same answers and changes nothing.
    """
    ids, following = yield from _select(
        operations, "retry", batch_ids, filters, state=State.FAILED, after=after, limit=limit
    )
    return (
        yield from _act(
            operations,
            engine.calls.retry(ids=ids, reason=reason, actor=operations.actor, dry_run=dry_run),
            following,
        )
    )


@operation("POST /v1/batches/cancel", scope="operate", raises=[InvalidIdentity], fenced=True)
def cancel_batches(
    operations: Operations,
    batch_ids: BatchIds | None = None,
    *,
    reason: Reason,
    after: Cursor | None = None,
    limit: ActionLimit | None = None,
    dry_run: DryRun = False,
    **filters: Unpack[UnfinishedFilters],
) -> Instructions[Page[ActionResult]]:
    """Cancel unfinished batches by id or by filter.

    Also while they run: their leases end, and later writes of their workers are refused. Each batch
    has its own answer, as for retry. `since` and `until` refer to the time of submission.
    """
    state = filters.get("state")
    if batch_ids is None and any(value is not None for value in filters.values()):
        possible = (State.PENDING, State.ASSIGNED, State.RUNNING)
        if state is None or read_state(state) not in possible:
            raise Refused(f"cancel: expected the state {' or '.join(possible)}, got {state}")
    ids, following = yield from _select(
        operations, "cancel", batch_ids, filters, state=state, after=after, limit=limit
    )
    return (
        yield from _act(
            operations,
            engine.calls.cancel(ids=ids, reason=reason, actor=operations.actor, dry_run=dry_run),
            following,
        )
    )


def _select(
    operations: Operations,
    verb: str,
    batch_ids: BatchIds | None,
    filters: Mapping[str, Any],
    *,
    state: StateFilter | None,
    after: str | None,
    limit: int | None,
) -> Instructions[tuple[list[uuid.UUID], str | None]]:
    """The ids of the batches to act on, and the cursor of those that follow."""
    _demand_one(verb, batch_ids, filters)
    if batch_ids is None:
        page = yield from list_batches(
            operations, **{**filters, "state": state}, after=after, limit=limit or SELECTED
        )
        return [row.batch_id for row in page.rows], page.next
    if (after, limit) != (None, None):
        raise Refused(f"{verb}: expected after and limit with filters only, got ids of batches")
    if not 1 <= len(batch_ids) <= IDS_MAX:
        raise Refused(f"{verb}: expected 1 to {IDS_MAX} ids, got {len(batch_ids)}")
    return list(dict.fromkeys(_batch_ids(batch_ids))), None


def _demand_one(verb: str, batches: object, filters: Mapping[str, Any]) -> None:
    """Refuse both ids and filters, and neither."""
    has_filters = any(value is not None for value in filters.values())
    if (batches is not None) == has_filters:
        got = "both" if has_filters else "neither"
        raise Refused(f"{verb}: expected ids of batches, or else filters; got {got}")


def _act(
    operations: Operations, call: AnyCall[list[ActionResult]], following: str | None
) -> Instructions[Page[ActionResult]]:
    results = yield from operations.ask(call)
    return Page(tuple(_visible(operations, result) for result in results), following)


def _visible(operations: Operations, result: ActionResult) -> ActionResult:
    """The answer; queue, identity and revision only for a token that may read batches."""
    if operations.reads_batches:
        return result
    return replace(result, queue=None, identity=(), revision=None)


def _on_one(
    verb: str,
) -> Callable[[Callable[Concatenate[Operations, P], Instructions[T]]], Operation[P, T]]:
    """Declare an action on one batch."""
    route = f"POST /v1/batches/{{batch_id}}/{verb}"
    errors = [NoSuchBatch, IllegalTransition]
    return operation(route, scope="operate", raises=errors, fenced=True)


@_on_one("retry")
def retry_batch(
    operations: Operations, batch_id: BatchId, *, reason: Reason
) -> Instructions[ActionResult]:
    """Retry a failed batch with all its attempts.

    A repeat has the answer `repeat` and changes nothing.
    """
    return (yield from _act_on_one(operations, "retry", engine.calls.retry, batch_id, reason))


@_on_one("cancel")
def cancel_batch(
    operations: Operations, batch_id: BatchId, *, reason: Reason
) -> Instructions[ActionResult]:
    """Cancel a batch, even while it runs: its lease ends.

    A repeat has the answer `repeat` and changes nothing.
    """
    return (yield from _act_on_one(operations, "cancel", engine.calls.cancel, batch_id, reason))


@_on_one("release")
def release_batch(
    operations: Operations, batch_id: BatchId, *, reason: Reason
) -> Instructions[ActionResult]:
    """Return the batch of a lost worker to its queue.

    Its lease ends, this costs no attempt, and later writes of that worker are refused.
    """
    call = engine.calls.release_by_id
    return (yield from _act_on_one(operations, "release", call, batch_id, reason))


@_on_one("erase")
def erase_batch(
    operations: Operations, batch_id: BatchId, *, reason: Reason, identity: AndIdentity = False
) -> Instructions[ActionResult]:
    """Delete payload and result of a finished batch.

    Failure details and the copies in fences are deleted too. This cannot be undone; the ledger
    keeps the events.
    """
    call = engine.calls.erase
    return (yield from _act_on_one(operations, "erase", call, batch_id, reason, identity=identity))


def _act_on_one(
    operations: Operations, verb: str, call: Any, batch_id: BatchId, reason: str, **options: bool
) -> Instructions[ActionResult]:
    [result] = yield from operations.ask(
        call(ids=[batch_id_of(batch_id)], reason=reason, actor=operations.actor, **options)
    )
    _demand_done(verb, result)
    return _visible(operations, result)


def _demand_done(verb: str, result: ActionResult) -> State:
    """The state of a batch after an action; raises if that was not possible."""
    batch_id, note = result.batch_id, result.note
    if result.answer in {"ok", "repeat"} and result.state is not None:
        return result.state
    if result.answer == "busy":
        raise Retryable(f"{verb}: another call holds batch {batch_id}; retry")
    if result.answer == "refused":
        raise NoSuchBatch(f"{verb}: {note or 'refused'}: {batch_id}; check the receipt")
    why = f": {note}" if note else ""
    raise IllegalTransition(
        f"{verb}: not possible for batch {batch_id}, which is {result.state}{why}",
        state=result.state,
        note=note,
    )


# Compositions of clients and commands.


def each(
    operations: Operations,
    action: Operation[..., ActionResult],
    batch_ids: Iterable[uuid.UUID],
    **values: object,
) -> Instructions[Page[ActionResult]]:
    """Act on one batch after another; an error of one becomes its answer."""
    results = []
    for batch_id in batch_ids:
        try:
            results.append((yield from action(operations, batch_id, **values)))
        except NoSuchBatch:
            results.append(ActionResult(batch_id, "refused", None, "no such batch"))
        except IllegalTransition as error:
            state = None if error.state is None else State(error.state)
            results.append(ActionResult(batch_id, "illegal", state, error.note))
        except Retryable:
            results.append(ActionResult(batch_id, "busy", None, None))
    return Page(tuple(results), None)


def act_on_batches(
    operations: Operations,
    verb: Literal["retry", "cancel"],
    batches: BatchRef | Iterable[BatchRef] | None,
    filters: Mapping[str, Any],
    reason: str,
    *,
    dry_run: bool = False,
) -> Instructions[State | list[ActionResult]]:
    """Cancel or retry one batch, several batches, or all batches that match the filters."""
    action: Operation[..., Page[ActionResult]]
    action = retry_batches if verb == "retry" else cancel_batches
    options: dict[str, Any] = {"reason": reason, "dry_run": dry_run}
    check_value("reason", Reason, reason)
    _demand_one(verb, batches, filters)
    results: list[ActionResult] = []
    if isinstance(batches, Receipt | uuid.UUID | BatchRow | str):
        page = yield from action(operations, [batch_id_of(batches)], **filters, **options)
        return _demand_done(verb, page.rows[0])
    if batches is not None:
        for ids in _chunks(verb, batches):
            page = yield from action(operations, ids, **filters, **options)
            results += page.rows
        return results
    options |= {"limit": MAX_PAGE, **filters}
    while True:
        page = yield from action(operations, **options)
        results += page.rows
        if page.next is None:
            return results
        options["after"] = page.next


def _chunks(verb: str, batches: object) -> Iterator[list[uuid.UUID]]:
    """Cut ids into chunks; a batch that is named twice counts once."""
    try:
        iterator = iter(batches)  # type: ignore[call-overload]
    except TypeError:
        raise Refused(
            f"{verb}: expected receipts or batch ids, got {ascii(batches)[:80]}"
        ) from None
    ids = iter(dict.fromkeys(batch_id_of(batch) for batch in iterator))
    while chunk := list(islice(ids, IDS_MAX)):
        yield chunk


def erase(
    operations: Operations, batch: BatchRef, reason: str, *, identity: bool = False
) -> Instructions[State]:
    """Erase a batch and return its state."""
    result = yield from erase_batch(operations, batch, reason=reason, identity=identity)
    return _demand_done("erase", result)
