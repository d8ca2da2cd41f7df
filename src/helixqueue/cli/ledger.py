"""`helixq ledger list|declare|append|show|replay|seal|verify`."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from helixqueue.cli import connection, operation, options, shapes, show
from helixqueue.cli.command import command
from helixqueue.cli.derived_commands import verb
from helixqueue.cli.exits import Exit
from helixqueue.cli.options import argument, option
from helixqueue.errors import NoSuchEntity, Refused
from helixqueue.identity import loads
from helixqueue.operations import ledgers
from helixqueue.records.ledger import NewEvent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helixqueue.cli.connection import Target
    from helixqueue.operations.instructions import Instructions
    from helixqueue.records.ledger import Appended, EntityName, LedgerEvent, LedgerRow
    from helixqueue.records.page import Page

app = typer.Typer(
    no_args_is_help=True, help="Ledgers: list, declare, append, show, replay, seal, verify."
)
STORED: Final = frozenset(("written", "duplicate_suppressed_by_db"))
LedgerName = Annotated[str, argument("LEDGER", "Name of the ledger.")]


def register(parent: typer.Typer) -> None:
    from helixqueue.cli import ledger_proof  # noqa: PLC0415 - registers replay, seal and verify

    ledger_proof.register(app)
    parent.add_typer(app, name="ledger")


@verb(app, "list", ledgers.list_ledgers, example="helixq ledger list", every_tenant=True)
def _list(page: Page[LedgerRow]) -> None:
    show.table(
        ("tenant", "ledger", "rules", "kinds", "terminal", "created"),
        [_row(row) for row in page.rows],
        empty="no ledgers",
        first="ledger",
        optional=("tenant",),
    )


def _row(row: LedgerRow) -> tuple[Any, ...]:
    terminal = sum(not after for after in row.arrows.values())
    rules = "enforced" if row.strict else "recorded"
    return (row.tenant, row.name, rules, str(len(row.arrows)), str(terminal), row.created_at)


@verb(
    app,
    "declare",
    ledgers.declare_ledger,
    example="helixq ledger declare dispatch --machine dispatch.json",
)
def _declare(row: LedgerRow) -> None:
    show.line(f"ledger {row.name}: {len(row.arrows)} kinds", "green")


@command(app, "append", example="helixq ledger append dispatch drone-7 1 REQUESTED")
@connection.service_or_database
def _append(
    *,
    ledger: LedgerName,
    entity: Annotated[str | None, argument("ENTITY", "Entity, such as drone-7.")] = None,
    seq: Annotated[int | None, argument("SEQ", "Sequence number, from 1.")] = None,
    kind: Annotated[str | None, argument("KIND", "Kind of the event.")] = None,
    payload: Annotated[str | None, option("--payload JSON", "Payload.")] = None,
    node: Annotated[str | None, option("--node NAME", "Where the event was observed.")] = None,
    file: Annotated[
        Path | None,
        option("--file FILE", "Append the events of a JSONL file instead; - for standard input."),
    ] = None,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Append one event, or those of a file; each is stored once.

    Exit code 0 if every event is stored, now or before; 1 if one is not.
    """
    if file is not None and entity is not None:
        raise typer.BadParameter("expected ENTITY SEQ KIND or --file, got both")
    if file is None and (entity is None or seq is None or kind is None):
        raise typer.BadParameter("expected ENTITY SEQ KIND, or --file")
    with connection.open_target() as target:
        if file is None:
            event = NewEvent(
                entity or "", seq or 0, kind or "", _json("--payload", payload or "null"), node
            )
            answers = [operation.run(target, tenant, actor, partial(_append_event, ledger, event))]
        else:
            events = list(_lines(file))
            answers = operation.run(target, tenant, actor, partial(_append_events, ledger, events))
    for answer in answers:
        if as_json:
            show.as_json(answer._asdict())
        elif file is None or answer.decision not in STORED:
            _print(answer)
    if not as_json and file is not None:
        stored = sum(answer.decision in STORED for answer in answers)
        show.line(f"{stored} of {len(answers)} events are stored")
    if any(answer.decision not in STORED for answer in answers):
        raise typer.Exit(Exit.NO)


def _append_event(ledger: str, event: NewEvent, operations: Any) -> Instructions[Appended]:  # noqa: ANN401
    declared = yield from ledgers.find(operations, ledger)
    return (yield from ledgers.append(operations, ledger, event, declared.machine))


def _append_events(ledger: str, events: list[Any], operations: Any) -> Instructions[list[Appended]]:  # noqa: ANN401
    declared = yield from ledgers.find(operations, ledger)
    return (yield from ledgers.append_many(operations, ledger, events, declared.machine))


def _print(answer: Appended) -> None:
    why = ", ".join(answer.rules) or ", ".join(change["path"] or "/" for change in answer.diff)
    state = f"; the entity is {answer.state}" if answer.state else ""
    style = "green" if answer.decision in STORED else "red"
    show.line(f"{answer.decision}{f' ({why})' if why else ''}{state}", style)


def _lines(file: Path) -> Iterator[Any]:
    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            event = _json(f"{file}:{number}", line)
            if isinstance(event, dict) and isinstance(event.get("entity"), list):
                event["entity"] = tuple(event["entity"])
            yield event


def _json(what: str, text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return loads(text.encode())
    except (Refused, ValueError) as error:
        raise typer.BadParameter(f"{what}: {error}") from None


@command(app, "show", example="helixq ledger show dispatch drone-7")
@connection.service_or_database
def _show(
    *,
    ledger: LedgerName,
    entity: Annotated[list[str], argument("ENTITY", "Entity; its parts, if it has several.")],
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the state of an entity and its events."""
    name = entity[0] if len(entity) == 1 else tuple(entity)
    with connection.open_target() as target:
        state, events = _read(target, tenant, ledger, name)
    if state is None:
        raise NoSuchEntity(f"ledger {ledger} has no event of {' / '.join(entity)}")
    if as_json:
        show.as_json(shapes.plain(state) | {"history": shapes.plain(events)})
        return
    show.line(f"{' / '.join(entity)}: {state.state}, seq {state.seq}, {state.events} events")
    show.table(("seq", "kind", "time", "node", "actor", "payload"), [_event(e) for e in events])


def _read(
    target: Target, tenant: str | None, ledger: str, entity: EntityName
) -> tuple[Any, list[LedgerEvent]]:
    def both(operations: Any) -> Instructions[tuple[Any, list[LedgerEvent]]]:  # noqa: ANN401
        yield from ledgers.find(operations, ledger)
        state = yield from ledgers.state(operations, ledger, entity)
        return state, (yield from ledgers.history(operations, ledger, entity))

    return operation.run(target, tenant, None, both)


def _event(event: LedgerEvent) -> tuple[Any, ...]:
    payload = "" if event.payload is None else json.dumps(event.payload, ensure_ascii=False)
    kind = event.kind if not event.violations else f"{event.kind} ({', '.join(event.violations)})"
    return (str(event.seq), kind, event.at, event.node, event.actor, payload[:200])
