"""Operations of user ledgers. Appending is a hot path: its request is encoded by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from helixqueue.errors import (
    InvalidIdentity,
    InvalidPayload,
    NoSuchEntity,
    NoSuchLedger,
    NotPermitted,
    Refused,
)
from helixqueue.identity import canonical_text, diff, identity_texts
from helixqueue.operations import engine
from helixqueue.operations.chunks import chunks
from helixqueue.operations.instructions import Execute, Instructions, Sleep
from helixqueue.operations.operation import operation
from helixqueue.records.ledger import (
    Appended,
    EntityState,
    GapRule,
    LedgerDeclaration,
    LedgerEvent,
    LedgerRow,
    NewEvent,
    NewEventRow,
)
from helixqueue.records.machine import KIND_PATTERN, KINDS_MAX, Machine
from helixqueue.records.page import Page
from helixqueue.records.parameter import (
    MAX_PAGE,
    NAME_PATTERN,
    Cursor,
    IdentityText,
    Limit,
    Param,
)

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations
    from helixqueue.records.ledger import AppendedRow, EntityName

SEQ_MAX: Final = 2**63 - 1
PAYLOAD_BYTES_MAX: Final = 1_048_576
NODE_BYTES_MAX: Final = 255
CHUNK_ROWS: Final = 1_000  # of one call
EventLike = NewEvent | tuple[Any, ...] | Mapping[str, Any]

LedgerName = Annotated[
    str, Param("Name of the ledger.", "dispatch", pattern=NAME_PATTERN, metavar="LEDGER")
]
EntityParts = Annotated[
    list[IdentityText], Param("The entity; repeated for several parts.", length=16)
]
KindName = Annotated[str, Param("", "CONFIRMED", pattern=KIND_PATTERN)]
Arrows = Annotated[
    dict[KindName, Annotated[list[KindName], Param("", least=0, length=KINDS_MAX)]],
    Param(
        "The kinds that may follow each kind; none for a terminal kind.",
        length=KINDS_MAX, option="--machine", metavar="JSON",
    ),
]  # fmt: skip
Initial = Annotated[
    list[KindName],
    Param(
        "Kinds of first events; default: those that no arrow reaches.",
        length=KINDS_MAX, metavar="KIND",
    ),
]  # fmt: skip
_STRICT = "Refuse events that violate the rules, or record the violations."
_GAPS = "Gaps of seqs: refuse, warn (record them) or allow. Default: refuse if strict, else warn."
Strict = Annotated[bool, Param(_STRICT, option="--strict/--lenient")]
Gaps = Annotated[GapRule, Param(_GAPS, metavar="RULE")]
BindPayload = Annotated[bool, Param("Make the payload a part of an event's identity.")]
Pointer = Annotated[str, Param("", "/trace_id", pattern=r"^/", length=255)]
Ignore = Annotated[
    list[Pointer],
    Param(
        "Payload fields that do not count in comparisons.", least=0, length=100, metavar="POINTER"
    ),
]


@operation("GET /v1/ledgers", scope="read")
def list_ledgers(
    operations: Operations, *, after: Cursor | None = None, limit: Limit = 50
) -> Instructions[Page[LedgerRow]]:
    """List ledgers with their rules.

    Kinds, arrows and options, sorted by name.
    """
    require_all_queues(operations)
    return operations.ask(
        engine.ledgers.ledgers(tenant=operations.tenant or None, after=after, limit=limit)
    )


@operation("GET /v1/ledgers/{ledger}", scope="any", raises=[NoSuchLedger])
def show_ledger(operations: Operations, ledger: LedgerName) -> Instructions[LedgerRow]:
    """Show the rules of a ledger, for every token that may use it.

    Kinds, arrows and options.
    """
    require_all_queues(operations)
    page = yield from operations.ask(engine.ledgers.ledgers(tenant=operations.tenant, name=ledger))
    if not page.rows:
        raise NoSuchLedger(
            f"no ledger {ledger!r}: declare it with helix.ledger({ledger!r}, Machine(...)) or "
            f"`helixq ledger declare {ledger}`"
        )
    return page.rows[0]


@operation("PUT /v1/ledgers/{ledger}", scope="operate", raises=[Refused], fenced=True)
def declare_ledger(
    operations: Operations,
    ledger: LedgerName,
    *,
    arrows: Arrows,
    initial: Initial | None = None,
    strict: Strict = True,
    gaps: Gaps | None = None,
    bind_payload: BindPayload = False,
    ignore: Ignore | None = None,
) -> Instructions[LedgerRow]:
    """Declare a ledger.

    Declaring it again may add kinds and arrows; other changes are refused.
    """
    require_all_queues(operations)
    for pointer in ignore or ():
        if not isinstance(pointer, str) or not pointer.startswith("/"):
            raise Refused(f"ignore: expected a JSON Pointer such as /trace_id, got {pointer!r}")
    machine = Machine(arrows, initial=initial)
    declared = LedgerDeclaration(ledger, machine, strict, bind_payload, tuple(ignore or ()), gaps)
    call = engine.ledgers.declare_ledger(
        tenant=operations.tenant, ledger=declared, actor=operations.actor
    )
    return (yield from operations.ask(call))


@operation(
    "GET /v1/ledgers/{ledger}/state",
    scope="read",
    raises=[NoSuchLedger, NoSuchEntity, InvalidIdentity],
)
def show_entity(
    operations: Operations, ledger: LedgerName, *, entity: EntityParts
) -> Instructions[EntityState]:
    """Show the state of an entity.

    The kind of its event with the greatest seq, the number of its events and their hash.
    """
    require_all_queues(operations)
    text, _ = identity_texts(tuple(entity), "text-v1")
    found = yield from operations.ask(
        engine.ledgers.entity(tenant=operations.tenant, ledger=ledger, entity=text)
    )
    if found is None:
        yield from show_ledger(operations, ledger)
        raise NoSuchEntity("the ledger has no event of this entity")
    return found


@operation(
    "GET /v1/ledgers/{ledger}/events",
    scope="read",
    raises=[NoSuchLedger, InvalidIdentity],
)
def list_events(
    operations: Operations,
    ledger: LedgerName,
    *,
    entity: EntityParts,
    after: Cursor | None = None,
    limit: Limit = 50,
) -> Instructions[Page[LedgerEvent]]:
    """List the events of an entity in the order in which they were written.

    A page has at most 16 MiB of payloads, which need the scope payloads.
    """
    require_all_queues(operations)
    text, _ = identity_texts(tuple(entity), "text-v1")
    page = yield from operations.ask(
        engine.ledgers.events(
            tenant=operations.tenant, ledger=ledger, entity=text, after=after, limit=limit
        )
    )
    if not page.rows and after is None:
        yield from show_ledger(operations, ledger)
    return page


def require_all_queues(operations: Operations) -> None:
    """A token that is restricted to queues has no ledgers."""
    if not operations.may_use(None):
        raise NotPermitted(
            "ledgers: expected a token without a list of queues, got a token with one"
        )


def declare(operations: Operations, ledger: LedgerDeclaration) -> Instructions[LedgerRow]:
    """Create the ledger, unless the stored one is as declared: a login that appends may do that."""
    try:
        row = yield from show_ledger(operations, ledger.name)
        if _is_declared(row, ledger):
            return row
    except NoSuchLedger:
        pass
    instructions = declare_ledger(
        operations,
        ledger.name,
        arrows={kind: list(after) for kind, after in ledger.machine.arrows.items()},
        initial=list(ledger.machine.initial),
        strict=ledger.strict,
        gaps=ledger.gaps,
        bind_payload=ledger.bind_payload,
        ignore=list(ledger.ignore),
    )
    return (yield from instructions)


def _is_declared(row: LedgerRow, ledger: LedgerDeclaration) -> bool:
    machine = ledger.machine
    return (
        {kind: set(after) for kind, after in row.arrows.items()}
        == {kind: set(after) for kind, after in machine.arrows.items()}
        and set(row.initial) == set(machine.initial)
        and (row.strict, row.gaps, row.bind_payload)
        == (ledger.strict, ledger.gap_rule, ledger.bind_payload)
        and tuple(row.ignore) == ledger.ignore
    )


def find(operations: Operations, ledger: str) -> Instructions[LedgerDeclaration]:
    """Return the stored declaration of a ledger."""
    row = yield from show_ledger(operations, ledger)
    machine = Machine(row.arrows, initial=row.initial)
    return LedgerDeclaration(
        row.name, machine, row.strict, row.bind_payload, tuple(row.ignore), row.gaps
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
) -> Instructions[Appended]:
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
) -> Instructions[list[Appended]]:
    """Append in chunks, each with a commit of its own; answers are in the order of the input."""
    answers: list[Appended | None] = []  # None: of the next row that is sent
    sent: list[Appended] = []

    def rows() -> Iterator[NewEventRow]:
        for item in events:
            try:
                row = prepare_event(_new_event(item), machine, _bytes_max(operations))
            except Refused as error:
                answers.append(Appended("refused", rules=(str(error),)))
            else:
                answers.append(None)
                yield row

    for chunk in chunks(rows(), _size, size=operations.call_set.chunk_chars, length=CHUNK_ROWS):
        if sent:
            yield Sleep(0)
        sent += yield from _send(operations, ledger, chunk, within)
    rest = iter(sent)
    return [answer or next(rest) for answer in answers]


def _size(row: NewEventRow) -> int:
    return len(row.payload) + len(row.entity)


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
) -> Instructions[list[Appended]]:
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
    operations: Operations, ledger: str, entity: EntityName
) -> Instructions[EntityState | None]:
    """Return the state of an entity; None if it has no event."""
    try:
        return (yield from show_entity(operations, ledger, entity=_parts(entity)))
    except NoSuchEntity:
        return None


def history(
    operations: Operations, ledger: str, entity: EntityName
) -> Instructions[list[LedgerEvent]]:
    """Read all events of an entity."""
    events: list[LedgerEvent] = []
    after: str | None = None
    while True:
        page = yield from list_events(
            operations, ledger, entity=_parts(entity), after=after, limit=MAX_PAGE
        )
        events += page.rows
        after = page.next
        if after is None:
            return events


def _parts(entity: EntityName) -> list[str]:
    return [entity] if isinstance(entity, str) else list(entity)
