"""List batches, and cancel, retry or erase them: by receipt, by id or by filter.

Actions on several batches run in pages: each page is one call, and each batch gets its own answer.
"""

from __future__ import annotations

import uuid
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypedDict

from helixqueue.errors import HelixError, IllegalTransition, Refused, Retryable
from helixqueue.identity import check_name
from helixqueue.operations.prepare import moment
from helixqueue.queues import Queue
from helixqueue.records.batch import ActionPage, ActionResult, BatchRow
from helixqueue.records.submission import Receipt
from helixqueue.states import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from helixqueue.operations.batches import Operations
    from helixqueue.operations.steps import AnyCall, Steps
    from helixqueue.records.batch import BatchPage

PAGE_ROWS: Final = 500
# The states from which each action is possible, for actions by filter.
ACTION_STATES: Final = {
    "retry": (State.FAILED,),
    "cancel": (State.PENDING, State.ASSIGNED, State.RUNNING),
}

BatchRef = Receipt[Any] | uuid.UUID | BatchRow


class BatchFilters(TypedDict, total=False):
    """Which batches a list or an action takes; all filters apply."""

    queue: Queue[Any, Any] | str | None
    state: State | str | None
    failure: str | None  # failure class; implies the state FAILED
    identity: str | tuple[str, ...] | None  # in any spelling
    worker: str | None  # holds the batch; with a finished state, finished it
    since: datetime | None  # time of submission; with a finished state, time of the end
    until: datetime | None  # exclusive


def list_page(
    operations: Operations, filters: BatchFilters, after: str | None, limit: int | None = None
) -> Steps[BatchPage]:
    queue = filters.get("queue")
    name = queue.name if isinstance(queue, Queue) else queue
    state = filters.get("state")
    return operations.ask(
        operations.reads.batches(
            tenant=operations.tenant,
            queue=None if name is None else check_name("queue", name),
            state=None if state is None else read_state(state),
            failure=filters.get("failure"),
            identity=filters.get("identity"),
            worker=filters.get("worker"),
            since=moment("since", filters.get("since")),
            until=moment("until", filters.get("until")),
            after=after,
            limit=limit or PAGE_ROWS,
        )
    )


def act_on_batch(
    operations: Operations, verb: str, batch: object, reason: str, **options: bool
) -> Steps[State]:
    """Cancel, retry or erase one batch and return its state; raise if that is not possible."""
    demand_reason(verb, reason)
    batch_id = batch_id_of(batch)
    [result] = yield from operations.ask(_call(operations, verb, [batch_id], reason, **options))
    if result.answer in {"ok", "repeat"} and result.state is not None:
        return result.state
    raise _error(verb, result)


def act_on_batches(
    operations: Operations,
    verb: str,
    batches: BatchRef | Iterable[BatchRef] | None,
    filters: BatchFilters,
    reason: str,
    *,
    dry_run: bool = False,
) -> Steps[State | list[ActionResult]]:
    """Cancel or retry one batch, several batches, or all batches that match the filters."""
    has_filters = any(value is not None for value in filters.values())
    if (batches is not None) == has_filters:
        got = "both" if has_filters else "neither"
        raise Refused(f"{verb}: expected receipts or ids, or else filters; got {got}")
    if isinstance(batches, Receipt | uuid.UUID | BatchRow | str):
        return (yield from act_on_batch(operations, verb, batches, reason, dry_run=dry_run))
    demand_reason(verb, reason)
    results: list[ActionResult] = []
    if batches is not None:
        for ids in _pages(verb, batches):
            results += yield from operations.ask(
                _call(operations, verb, ids, reason, dry_run=dry_run)
            )
        return results
    after: str | None = None
    while True:
        page = yield from act_on_page(
            operations, verb, filters, reason, dry_run=dry_run, after=after
        )
        results += page.rows
        after = page.next
        if after is None:
            return results


def act_on_page(
    operations: Operations,
    verb: str,
    filters: BatchFilters,
    reason: str,
    *,
    dry_run: bool,
    after: str | None,
    limit: int | None = None,
) -> Steps[ActionPage]:
    """Cancel or retry the next batches that match.

    A retried batch that fails again has a later time of failure: the cursor does not return to it.
    """
    filters = {**filters, "state": action_state(verb, filters.get("state"))}
    page = yield from list_page(operations, filters, after, limit)
    ids = [row.batch_id for row in page.rows]
    results: list[ActionResult] = []
    if ids:
        results = yield from operations.ask(_call(operations, verb, ids, reason, dry_run=dry_run))
    return ActionPage(tuple(results), page.next)


def action_state(verb: str, state: State | str | None) -> State:
    """Check the state filter of an action; an action with one possible state needs no filter."""
    possible = ACTION_STATES[verb]
    selected = read_state(state) if state is not None else None
    if selected is None and len(possible) == 1:
        return possible[0]
    if selected not in possible:
        raise Refused(f"{verb}: expected the state {' or '.join(possible)}, got {selected}")
    return selected


def read_state(word: State | str) -> State:
    try:
        return State(word.upper())
    except (ValueError, AttributeError):
        raise Refused(f"state: expected one of {', '.join(State)}; got {word!r}") from None


def batch_id_of(batch: object) -> uuid.UUID:
    batch_id = batch.batch_id if isinstance(batch, Receipt | BatchRow) else batch
    if not isinstance(batch_id, uuid.UUID):
        hint = "; pass its .receipt" if hasattr(batch, "receipt") else ""
        raise Refused(f"expected a receipt or a batch's UUID, got {ascii(batch)[:80]}{hint}")
    return batch_id


def _call(
    operations: Operations, verb: str, ids: list[uuid.UUID], reason: str, **options: bool
) -> AnyCall[list[ActionResult]]:
    calls, actor = operations.calls, operations.actor
    if verb == "erase":
        return calls.erase(ids=ids, reason=reason, actor=actor, **options)
    build = calls.retry if verb == "retry" else calls.cancel
    return build(ids=ids, reason=reason, actor=actor, **options)


def _pages(verb: str, batches: object) -> Iterator[list[uuid.UUID]]:
    """Cut ids into pages; a batch that is named twice counts once."""
    try:
        iterator = iter(batches)  # type: ignore[call-overload]
    except TypeError:
        raise Refused(
            f"{verb}: expected receipts or batch ids, got {ascii(batches)[:80]}"
        ) from None
    ids = iter(dict.fromkeys(batch_id_of(batch) for batch in iterator))
    while page := list(islice(ids, PAGE_ROWS)):
        yield page


def demand_reason(verb: str, reason: object) -> None:
    if not isinstance(reason, str) or not reason.strip() or "\0" in reason:
        raise Refused(f"{verb}: expected a reason for the record, got {reason!r}")


def _error(verb: str, result: ActionResult) -> HelixError:
    batch_id, note = result.batch_id, result.note
    if result.answer == "busy":
        return Retryable(f"{verb}: another call holds batch {batch_id}; retry")
    if result.answer == "refused":
        return Refused(f"{verb}: {note or 'refused'}: {batch_id}; check the receipt")
    why = f": {note}" if note else ""
    return IllegalTransition(
        f"{verb}: not possible for batch {batch_id}, which is {result.state}{why}"
    )
