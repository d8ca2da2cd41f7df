"""Operations of user ledgers, as steps without I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from helixqueue.errors import InvalidPayload, Refused
from helixqueue.identity import canonical_text, check_name, diff, identity_texts
from helixqueue.operations.steps import Execute, Sleep
from helixqueue.records.ledger import Appended, LedgerDeclaration, NewEvent, NewEventRow
from helixqueue.records.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helixqueue.operations.batches import Operations
    from helixqueue.operations.steps import Steps
    from helixqueue.records.ledger import (
        AppendedRow,
        EntityState,
        LedgerEvent,
        LedgerRow,
    )

SEQ_MAX: Final = 2**63 - 1
PAYLOAD_BYTES_MAX: Final = 1_048_576
NODE_BYTES_MAX: Final = 255
CHUNK_ROWS: Final = 1_000  # of one call
PAGE_ROWS: Final = 500
EventLike = NewEvent | tuple[Any, ...] | Mapping[str, Any]


def declare(operations: Operations, ledger: LedgerDeclaration) -> Steps[LedgerRow]:
    """Create the ledger, or compare the declaration with the stored one."""
    check_name("ledger", ledger.name)
    for pointer in ledger.ignore:
        if not isinstance(pointer, str) or not pointer.startswith("/"):
            raise Refused(f"ignore: expected a JSON Pointer such as /trace_id, got {pointer!r}")
    calls = operations.call_set.ledgers
    stored = yield from operations.ask(calls.ledgers(tenant=operations.tenant, name=ledger.name))
    if stored and _is_declared(stored[0], ledger):
        row: LedgerRow = stored[0]
        return row
    row = yield from operations.ask(
        calls.declare_ledger(tenant=operations.tenant, ledger=ledger, actor=operations.actor)
    )
    return row


def find(operations: Operations, name: str) -> Steps[LedgerDeclaration]:
    """Return the stored declaration of a ledger."""
    check_name("ledger", name)
    calls = operations.call_set.ledgers
    rows = yield from operations.ask(calls.ledgers(tenant=operations.tenant, name=name))
    if not rows:
        raise Refused(
            f"no ledger {name!r}: declare it with helix.ledger({name!r}, Machine(...)) or "
            f"`helixq ledger declare {name}`"
        )
    return declaration_of(rows[0])


def declaration_of(row: LedgerRow) -> LedgerDeclaration:
    machine = Machine(row.arrows, initial=row.initial)
    return LedgerDeclaration(row.name, machine, row.strict, row.bind_payload, tuple(row.ignore))


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


def prepare_event(
    event: NewEvent, machine: Machine | None, bytes_max: int = PAYLOAD_BYTES_MAX
) -> NewEventRow:
    """Make the row that is sent, or raise the error of an invalid event.

    Without the machine, an unknown kind is left to the engine, which answers `illegal`.
    """
    entity, _ = identity_texts(event.entity, "text-v1")
    seq, kind, node = event.seq, event.kind, event.node
    if not isinstance(seq, int) or isinstance(seq, bool) or not 1 <= seq <= SEQ_MAX:
        raise Refused(f"seq: expected a whole number from 1 to 2^63 - 1, got {ascii(seq)[:80]}")
    if not isinstance(kind, str) or (machine is not None and kind not in machine.arrows):
        known = "the kinds of the ledger" if machine is None else ", ".join(machine.arrows)
        raise Refused(f"kind: expected one of {known}; got {ascii(kind)[:80]}")
    if node is not None and not (
        isinstance(node, str) and len(node.encode()) <= NODE_BYTES_MAX and "\0" not in node
    ):
        raise Refused(f"node: expected a text of at most {NODE_BYTES_MAX} bytes, got {node!r:.80}")
    text = canonical_text(event.payload)
    if len(text) > bytes_max // 4 and len(text.encode()) > bytes_max:
        raise InvalidPayload(
            f"payload: expected at most {bytes_max} bytes of JSON, got "
            f"{len(text.encode())}; put the data into a file and its name into the payload",
            code="too_large",
        )
    return NewEventRow(entity, seq, kind, text, node)


def append(
    operations: Operations,
    ledger: str,
    event: NewEvent,
    machine: Machine | None = None,
    *,
    within: object = None,
) -> Steps[Appended]:
    """Append one event; an invalid one raises `Refused`, every other answer is returned."""
    row = prepare_event(event, machine, _bytes_max(operations))
    [answer] = yield from _send(operations, ledger, [row], within)
    if answer.decision == "refused":
        raise Refused("; ".join(answer.rules))
    return answer


def append_many(
    operations: Operations,
    ledger: str,
    events: Iterable[EventLike],
    machine: Machine | None = None,
    *,
    within: object = None,
) -> Steps[list[Appended]]:
    """Append in chunks, each with a commit of its own; answers are in the order of the input."""
    call_set = operations.call_set
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
            row = prepare_event(_new_event(item), machine, _bytes_max(operations))
        except Refused as error:
            answers.append(Appended("refused", rules=(str(error),)))
            continue
        size = len(row.payload) + len(row.entity)
        if len(rows) >= CHUNK_ROWS or (rows and chars + size > call_set.chunk_chars):
            yield from flush()
            yield Sleep(0)
        places.append(len(answers))
        answers.append(Appended("refused"))
        rows.append(row)
        chars += size
    yield from flush()
    return answers


def _bytes_max(operations: Operations) -> int:
    return min(PAYLOAD_BYTES_MAX, operations.call_set.payload_bytes_max or PAYLOAD_BYTES_MAX)


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
    operations: Operations, ledger: str, rows: list[NewEventRow], within: object
) -> Steps[list[Appended]]:
    call = operations.call_set.ledgers.append(
        tenant=operations.tenant, ledger=ledger, rows=rows, actor=operations.actor
    )
    if within is None:
        answers = yield from operations.ask(call)
    else:
        answers = yield Execute(call, within)
    return [_answer(answer, row) for answer, row in zip(answers, rows, strict=True)]


def _answer(row: AppendedRow, sent: NewEventRow) -> Appended:
    changes = row.diff
    if row.decision == "conflict" and row.stored_payload is not None:
        changes = tuple(diff(json.loads(row.stored_payload), json.loads(sent.payload)))
    return Appended(row.decision, row.key, row.version, row.state, row.seq, row.rules, changes)


def state(
    operations: Operations, ledger: str, entity: str | tuple[str, ...]
) -> Steps[EntityState | None]:
    text, _ = identity_texts(entity, "text-v1")
    calls = operations.call_set.ledgers
    return operations.ask(calls.entity(tenant=operations.tenant, ledger=ledger, entity=text))


def history(
    operations: Operations, ledger: str, entity: str | tuple[str, ...]
) -> Steps[list[LedgerEvent]]:
    """Read all events of an entity, a page at a time. A page is also limited in bytes."""
    text, _ = identity_texts(entity, "text-v1")
    events: list[LedgerEvent] = []
    calls = operations.call_set.ledgers
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
        if not page:
            return events
        events += page
