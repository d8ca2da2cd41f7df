"""Queues: settings, counts, pausing, deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Unpack

from helixqueue.errors import InvalidPayload, NoSuchQueue, QueueNotEmpty, Refused
from helixqueue.identity import check_name
from helixqueue.operations import engine
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.operation import operation
from helixqueue.queues import Queue, checked_requires
from helixqueue.queues.schema_bounds import check_bounds
from helixqueue.records.page import Page
from helixqueue.records.parameter import Cursor, Limit, Param, QueueName, Reason
from helixqueue.records.queue import QueueDeleted, QueueRow, QueueSettings, QueueSummary
from helixqueue.schemas import Schema

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations

# Per page: counting hundreds of deep queues could exceed the statement timeout.
COUNTED_MAX: Final = 500_000
DECLARED: Final = "as a client declares it"
CountTo = Annotated[
    int, Param("Counts stop at this number.", 1_000, least=0, most=10_000, metavar="N")
]


@operation("GET /v1/queues", scope="read")
def list_queues(
    operations: Operations,
    *,
    count_to: CountTo = 1_000,
    after: Cursor | None = None,
    limit: Limit = 50,
) -> Instructions[Page[QueueSummary]]:
    """List queues with the number of batches in each state.

    Settings and counts, sorted by name, without schemas. A count that stopped at `count_to` has
    `more`. A page of more than 50 queues counts less far: to 1,000 with 500 queues.
    """
    return operations.ask(
        engine.reads.queues(
            tenant=operations.tenant or None,
            bound=min(count_to, COUNTED_MAX // limit),
            after=after,
            limit=limit,
        )
    )


@operation("GET /v1/queues/{queue}", scope="read", raises=[NoSuchQueue])
def show_queue(
    operations: Operations, queue: QueueName, *, count_to: CountTo = 1_000
) -> Instructions[QueueSummary]:
    """Show the settings and counts of a queue.

    Settings, schemas, and the number of batches in each state.
    """
    rows = yield from _of_name(operations, queue, count_to)
    if len(rows) > 1:
        tenants = ", ".join(row.tenant for row in rows)
        raise Refused(f"expected a tenant: queue {queue} exists for {tenants}; choose one of them")
    return rows[0]


@operation("GET /v1/queues/{queue}/settings", scope="any", raises=[NoSuchQueue])
def show_settings(operations: Operations, queue: QueueName) -> Instructions[QueueRow]:
    """Show the settings of a queue, for every token that may use it.

    For clients that prepare submissions and workers that check results; without counts.
    """
    operations.require_queue(queue)
    return (yield from _find(operations, queue))


@operation(
    "PUT /v1/queues/{queue}", scope="operate", raises=[InvalidPayload], fenced=True, computes=True
)
def set_queue(
    operations: Operations, queue: QueueName, *, reason: Reason, **settings: Unpack[QueueSettings]
) -> Instructions[QueueRow]:
    """Create a queue, or change the given settings.

    The change is recorded with its reason. The profile of a queue that had a batch cannot be
    changed: known identities would look new.
    """
    if "requires" in settings:
        settings["requires"] = checked_requires(settings["requires"])
    for name in ("payload_schema", "result_schema"):
        document: Any = settings.get(name)
        if document is not None:
            check_bounds(document, name)
            Schema(document).check_compiles()
    return (yield from _set(operations, queue, reason, **settings))


@operation("POST /v1/queues/{queue}/pause", scope="operate", raises=[NoSuchQueue], fenced=True)
def pause_queue(
    operations: Operations, queue: QueueName, *, reason: Reason
) -> Instructions[QueueRow]:
    """Stop assigning batches of a queue; running batches continue.

    The queue still accepts submissions.
    """
    yield from _find(operations, queue)  # only `set_queue` creates queues
    return (yield from _set(operations, queue, reason, paused=True))


@operation("POST /v1/queues/{queue}/resume", scope="operate", raises=[NoSuchQueue], fenced=True)
def resume_queue(
    operations: Operations, queue: QueueName, *, reason: Reason
) -> Instructions[QueueRow]:
    """Assign batches of a paused queue again.

    Pending batches keep their order.
    """
    yield from _find(operations, queue)
    return (yield from _set(operations, queue, reason, paused=False))


@operation(
    "POST /v1/queues/{queue}/delete",
    scope="operate",
    raises=[NoSuchQueue, QueueNotEmpty],
    fenced=True,
)
def delete_queue(
    operations: Operations, queue: QueueName, *, reason: Reason
) -> Instructions[QueueDeleted]:
    """Delete a queue that never had a batch.

    A queue with batches, even deleted ones, stays: their keys contain its name. Close it with
    `helixq queue set NAME --closed`.
    """
    call = engine.calls.delete_queue(
        tenant=operations.tenant, queue=queue, actor=operations.actor, reason=reason
    )
    answer = yield from operations.ask(call, repeatable=False)
    operations.forget(queue)
    if answer == "absent":
        raise operations.no_such_queue(queue)
    if answer == "not_empty":
        raise QueueNotEmpty(
            f"queue {queue} has or had batches, so it stays; close it with `helixq queue set "
            f"{queue} --closed --reason ...`"
        )
    return QueueDeleted(operations.tenant, queue)


def tenants_of(operations: Operations, queue: str) -> Instructions[list[str]]:
    """The tenants that have this queue; that of the connection, or of all that it may see."""
    if operations.call_set.remote is not None:
        yield from show_settings(operations, queue)
        return [operations.tenant]
    if operations.tenant:
        yield from _find(operations, queue)
        return [operations.tenant]
    rows = yield from _of_name(operations, queue, 0)
    return [row.tenant for row in rows]


def require_queue(operations: Operations, queue: str) -> Instructions[None]:
    """Raise NoSuchQueue if no tenant of the connection has this queue."""
    yield from tenants_of(operations, queue)


def delete_if_exists(
    operations: Operations, queue: Queue[Any, Any] | str, reason: str
) -> Instructions[bool]:
    """Delete a queue that never had a batch; False if there is none."""
    name = queue.name if isinstance(queue, Queue) else check_name("queue", queue)
    try:
        yield from delete_queue(operations, name, reason=reason)
    except NoSuchQueue:
        return False
    finally:
        operations.forget(name)  # of this client, if a service ran the operation
    return True


def _of_name(operations: Operations, queue: str, count_to: int) -> Instructions[list[QueueSummary]]:
    """The queues of this name, of all tenants if the connection names none."""
    page = yield from operations.ask(
        engine.reads.queues(tenant=operations.tenant or None, queue=queue, bound=count_to)
    )
    if not page.rows:
        raise operations.no_such_queue(queue)
    return list(page.rows)


def _find(operations: Operations, queue: str) -> Instructions[QueueRow]:
    row = yield from operations.ask(engine.calls.queue(tenant=operations.tenant, queue=queue))
    if row is None:
        raise operations.no_such_queue(queue)
    return row


def _set(
    operations: Operations,
    queue: str,
    reason: str,
    *,
    paused: bool | None = None,
    **settings: Unpack[QueueSettings],
) -> Instructions[QueueRow]:
    call = engine.calls.set_queue(
        tenant=operations.tenant, queue=queue, actor=operations.actor, reason=reason,
        paused=paused, **settings,
    )  # fmt: skip
    row = yield from operations.ask(call)
    operations.forget(queue)
    return row
