"""`helixq letter list|show|redrive|discard`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from helixqueue.cli import shapes, show
from helixqueue.cli.derived_commands import verb
from helixqueue.operations import letters

if TYPE_CHECKING:
    from helixqueue.records.letter import Discarded, LetterDetail, LetterRow
    from helixqueue.records.page import Page
    from helixqueue.records.submission import Accepted

app = typer.Typer(no_args_is_help=True, help="Dead letters: list, show, redrive, discard.")


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="letter")


@verb(
    app,
    "list",
    letters.list_letters,
    example="helixq letter list --reason json",
    every_tenant=True,
)
def _list(page: Page[LetterRow]) -> None:
    show.table(
        ("letter", "time", "status", "reason", "source", "detail", "tenant"),
        [
            (
                str(row.letter),
                row.last_at,
                row.status,
                row.reason,
                f"{row.kind} {row.name} {row.source}",
                row.detail or "",
                row.tenant,
            )
            for row in page.rows
        ],
        empty="no letters",
        optional=("time", "tenant"),
    )


@verb(app, "show", letters.show_letter, example="helixq letter show 7", every_tenant=True)
def _show(letter: LetterDetail) -> None:
    members = shapes.plain(letter)
    fields, body = members.pop("fields") or {}, members.pop("body")
    for name, value in members.items():
        if value is not None:
            show.line(f"{name:<12}{value}")
    for name, text in fields.items():
        show.line(f"field {name}: {text}")
    if body is not None:
        show.line(f"base64: {body}")


@verb(
    app,
    "redrive",
    letters.redrive_letter,
    example='helixq letter redrive 7 --revision 2 --reason "corrected upstream"',
    every_tenant=True,
)
def _redrive(submitted: Accepted[Any], *, letter: int) -> None:
    show.line(f"letter {letter}: {submitted.decision} batch {submitted.receipt.batch_id}")


@verb(
    app,
    "discard",
    letters.discard_letter,
    example='helixq letter discard 7 --reason "test data"',
    every_tenant=True,
    refused=lambda discarded: discarded.answer == "refused",
)
def _discard(discarded: Discarded) -> None:
    show.line(f"letter {discarded.letter}: {discarded.answer}")
