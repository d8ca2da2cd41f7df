"""Operations of user ledgers, as steps without I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from helixqueue.engine import ledgers as calls
from helixqueue.errors import InvalidPayload, Refused
from helixqueue.identity import canonical_text, check_name, diff, identity_texts
from helixqueue.operations.steps import Execute, Sleep
from helixqueue.records.ledger import Appended, NewEvent, NewEventRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helixqueue.operations.batches import Operations
    from helixqueue.operations.steps import Steps
    from helixqueue.records.ledger import (
        AppendedRow,
        EntityState,
        LedgerDeclaration,
        LedgerEvent,
        LedgerRow,
    )

SEQ_MAX: Final = 2**63 - 1
PAYLOAD_BYTES_MAX: Final = 1_048_576
NODE_BYTES_MAX: Final = 255
# Rows and characters of one call.
CHUNK_ROWS: Final = 1_000
CHUNK_CHARS: Final = 8 * 1024 * 1024
PAGE_ROWS: Final = 1_000
EventLike = NewEvent | tuple[Any, ...] | Mapping[str, Any]


def declare(operations: Operations, ledger: LedgerDeclaration) -> Steps[LedgerRow]:
    check_name("ledger", ledger.name)
    for pointer in ledger.ignore:
        if not isinstance(pointer, str) or not pointer.startswith("/"):
            raise Refused(f"ignore: expected a JSON Pointer such as /trace_id, got {pointer!r}")
    stored = yield from operations.ask(calls.ledgers(tenant=operations.tenant, name=ledger.name))
    if stored and _is_declared(stored[0], ledger):
        return stored[0]
    row: LedgerRow = yield from operations.ask(
        calls.declare_ledger(tenant=operations.tenant, ledger=ledger, actor=operations.actor)
    )
    return row


def _is_declared(row: LedgerRow, ledger: LedgerDeclaration) -> bool:
    """Whether the stored ledger is as declared: then a login that only appends may use it."""
    machine = ledger.machine
    return (
        {kind: set(after) for kind, after in row.arrows.items()}
        == {kind: set(after) for kind, after in machine.arrows.items()}
        and set(row.initial) == set(machine.initial)
        and (row.strict, row.bind_payload) == (ledger.strict, ledger.bind_payload)
        and tuple(row.ignore) == ledger.ignore
    )


def prepare_event(ledger: LedgerDeclaration, event: NewEvent) -> NewEventRow:
    """Make the row that is sent, or raise the error of an invalid event."""
    entity, _ = identity_texts(event.entity, "text-v1")
    seq, kind, node = event.seq, event.kind, event.node
    if not isinstance(seq, int) or isinstance(seq, bool) or not 1 <= seq <= SEQ_MAX:
        raise Refused(f"seq: expected a whole number from 1 to 2^63 - 1, got {ascii(seq)[:80]}")
    if kind not in ledger.machine.arrows:
        known = ", ".join(ledger.machine.arrows)
        raise Refused(f"kind: expected one of {known}; got {ascii(kind)[:80]}")
    if node is not None and not (
        isinstance(node, str) and len(node.encode()) <= NODE_BYTES_MAX and "\0" not in node
    ):
        raise Refused(f"node: expected a text of at most {NODE_BYTES_MAX} bytes, got {node!r:.80}")
    text = canonical_text(event.payload)
    if len(text.encode()) > PAYLOAD_BYTES_MAX:
        raise InvalidPayload(
            f"payload: expected at most {PAYLOAD_BYTES_MAX} bytes of JSON, got "
            f"{len(text.encode())}; put the data into a file and its name into the payload",
            code="too_large",
        )
    return NewEventRow(entity, seq, kind, text, node)


def append(
    operations: Operations,
    ledger: LedgerDeclaration,
    event: NewEvent,
    *,
    within: object = None,
) -> Steps[Appended]:
    """Append one event; an invalid one raises `Refused`, every other answer is returned."""
    row = prepare_event(ledger, event)
    [answer] = yield from _send(operations, ledger, [row], within)
    return answer


def append_many(
    operations: Operations,
    ledger: LedgerDeclaration,
    events: Iterable[EventLike],
    *,
    within: object = None,
) -> Steps[list[Appended]]:
    """Append in chunks, each with a commit of its own; answers are in the order of the input."""
    answers: list[Appended] = []
    places: list[int] = []
    rows: list[NewEventRow] = []
    chars = 0

    def flush() -> Steps[None]:
        nonlocal chars
        if rows:
            sent = yield from _send(operations, ledger, rows, within)
            for place, answer in zip(places, sent, strict=True):
                answers[place] = answer
        places.clear()
        rows.clear()
        chars = 0

    for item in events:
        try:
            row = prepare_event(ledger, _new_event(item))
        except Refused as error:
            answers.append(Appended("refused", rules=(str(error),)))
            continue
        if len(rows) >= CHUNK_ROWS or (rows and chars + len(row.payload) > CHUNK_CHARS):
            yield from flush()
            yield Sleep(0)
        places.append(len(answers))
        answers.append(Appended("refused"))
        rows.append(row)
        chars += len(row.payload)
    yield from flush()
    return answers


def _new_event(item: EventLike) -> NewEvent:
    if isinstance(item, NewEvent):
        return item
    try:
        return NewEvent(**item) if isinstance(item, Mapping) else NewEvent(*item)
    except TypeError:
        raise Refused(
            "expected a NewEvent, a tuple or a mapping with entity, seq, kind, payload, node; "
            f"got {ascii(item)[:120]}"
        ) from None


def _send(
    operations: Operations, ledger: LedgerDeclaration, rows: list[NewEventRow], within: object
) -> Steps[list[Appended]]:
    call = calls.append(
        tenant=operations.tenant, ledger=ledger.name, rows=rows, actor=operations.actor
    )
    if within is None:
        answers = yield from operations.ask(call)
    else:
        answers = yield Execute(call, within)
    return [_answer(answer, row) for answer, row in zip(answers, rows, strict=True)]


def _answer(row: AppendedRow, sent: NewEventRow) -> Appended:
    changes: tuple[dict[str, Any], ...] = ()
    if row.decision == "conflict":
        stored = None if row.stored_payload is None else json.loads(row.stored_payload)
        changes = tuple(diff(stored, json.loads(sent.payload)))
    return Appended(row.decision, row.key, row.version, row.state, row.seq, row.rules, changes)


def state(
    operations: Operations, ledger: str, entity: str | tuple[str, ...]
) -> Steps[EntityState | None]:
    text, _ = identity_texts(entity, "text-v1")
    return operations.ask(calls.entity(tenant=operations.tenant, ledger=ledger, entity=text))


def history(
    operations: Operations, ledger: str, entity: str | tuple[str, ...]
) -> Steps[list[LedgerEvent]]:
    """Read all events of an entity, a page at a time."""
    text, _ = identity_texts(entity, "text-v1")
    events: list[LedgerEvent] = []
    while True:
        page = yield from operations.ask(
            calls.events(
                tenant=operations.tenant,
                ledger=ledger,
                entity=text,
                after=events[-1].version if events else 0,
                limit=PAGE_ROWS,
            )
        )
        events += page
        if len(page) < PAGE_ROWS:
            return events
