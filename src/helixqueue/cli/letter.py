"""`helixq letter list|show|redrive|discard`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, operation, options, pages, shapes, show, times
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit
from helixqueue.operations import letters
from helixqueue.operations.message import shown_fields

if TYPE_CHECKING:
    from helixqueue.records.letter import LetterRow

app = typer.Typer(no_args_is_help=True, help="Dead letters: list, show, redrive, discard.")
Letter = Annotated[int, typer.Argument(metavar="LETTER", min=1, help="Number of the letter.")]
Queue = Annotated[str | None, typer.Option("--queue", metavar="QUEUE", help="Name of the queue.")]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="letter")


@app.callback()
def _letters() -> None:
    """Dead letters: list, show, redrive, discard."""


@command(app, "list", example="helixq letter list --reason json")
@connection.service_or_database
def _list(
    *,
    status: Annotated[
        str,
        typer.Option("--status", metavar="WORD", help="open, redriven, discarded, expired or all."),
    ] = "open",
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="WORD", help="Reason, such as json.")
    ] = None,
    queue: Queue = None,
    limit: options.Limit = 50,
    after: options.After = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """List messages that could not become batches, newest first."""
    with connection.open_target() as target:
        read = partial(
            target.letters.letters,
            tenant=connection.tenant_to_change(target, tenant),
            status=None if status == "all" else status,
            reason=reason,
            queue=queue,
        )
        rows, cursor = pages.read_rows(target, read, limit, after)
    if as_json:
        show.as_json({"letters": [_shape(row) for row in rows], "next": cursor})
        return
    show.table(
        ("letter", "time", "status", "reason", "source", "detail"),
        [_row(row) for row in rows],
        empty="no letters",
    )
    pages.print_next(cursor)


@command(app, "show", example="helixq letter show 7")
@connection.service_or_database
def _show(
    *,
    letter: Letter,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a letter with the fields of its message.

    Bytes that are not UTF-8 are shown as escapes.
    """
    with connection.open_target() as target:
        found = operation.run(target, tenant, None, partial(letters.show, letter=letter, body=True))
    fields = None if found.body is None else shown_fields(found.body)
    if as_json:
        show.as_json(_shape(found.row) | {"fields": fields})
        return
    for name, value in _shape(found.row).items():
        if value is not None:
            show.line(f"{name:<12}{value}")
    for name, text in (fields or {}).items():
        show.line(f"field {name}: {text}")


@command(
    app, "redrive", example='helixq letter redrive 7 --revision 2 --reason "corrected upstream"'
)
@connection.service_or_database
def _redrive(
    *,
    letter: Letter,
    reason: options.Reason,
    queue: Queue = None,
    identity: Annotated[
        str | None, typer.Option("--identity", metavar="TEXT", help="Replace the identity.")
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(
            "--revision",
            metavar="TEXT",
            help="Submit it as new work, beside the batch that it conflicts with.",
        ),
    ] = None,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Submit the message of a letter, with corrections.

    The batch keeps the source of the message, and the letter closes.
    """
    with connection.open_target() as target:
        redrive = partial(
            letters.redrive, letter=letter, reason=reason, queue=queue, identity=identity,
            revision=revision,
        )  # fmt: skip
        submitted = operation.run(target, tenant, actor, redrive)
    batch_id = str(submitted.receipt.batch_id)
    if as_json:
        show.as_json({"letter": letter, "decision": submitted.decision, "batch_id": batch_id})
    else:
        show.line(f"letter {letter}: {submitted.decision} batch {batch_id}")


@command(app, "discard", example='helixq letter discard 7 --reason "test data"')
@connection.service_or_database
def _discard(
    *,
    letter: Letter,
    reason: options.Reason,
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Delete the message of a letter; its record stays."""
    with connection.open_target() as target:
        answers = operation.run(
            target, tenant, actor, partial(letters.discard, letters=[letter], reason=reason)
        )
    if as_json:
        show.as_json({"letter": letter, "answer": answers[letter]})
    else:
        show.line(f"letter {letter}: {answers[letter]}")
    if answers[letter] == "refused":
        raise typer.Exit(Exit.NO)


def _shape(row: LetterRow) -> dict[str, Any]:
    return shapes.plain_members(asdict(row)) | {
        "batch_id": None if row.batch_id is None else str(row.batch_id)
    }


def _row(row: LetterRow) -> tuple[str, ...]:
    return (
        str(row.letter),
        times.to_seconds(row.last_at),
        row.status,
        row.reason,
        f"{row.kind} {row.name} {row.source}",
        (row.detail or "")[:80],
    )
