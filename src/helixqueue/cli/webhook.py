"""`helixq webhook apply|list|show|rotate|test`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, operation, options, shapes, show
from helixqueue.cli.command import command
from helixqueue.cli.derived_commands import verb
from helixqueue.cli.exits import Exit
from helixqueue.cli.options import argument, option
from helixqueue.webhook import event as events
from helixqueue.webhook import operations as webhooks
from helixqueue.webhook.source import WebhookSource, source_of
from helixqueue.webhook.source_file import read_sources

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instructions
    from helixqueue.records.page import Page
    from helixqueue.records.webhook import AppliedSource, RotatedSecret, WebhookSourceRow

app = typer.Typer(
    no_args_is_help=True, help="Sources of webhooks: apply, list, show, rotate, test."
)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="webhook")


@command(app, "apply", example="helixq webhook apply webhooks.yml")
@connection.service_or_database
def _apply(
    *,
    file: Annotated[Path, argument("FILE", "YAML file with the sources.")],
    actor: options.Actor = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Create or replace the sources of a file. Repeating it changes nothing.

    Sources that the file does not name stay as they are.
    """
    with connection.open_target() as target:
        ask = operation.Runner(target, tenant, actor)
        answers = [_apply_one(ask, source) for source in read_sources(file)]
    if as_json:
        show.as_json([shapes.plain(answer) for answer in answers])
        return
    for answer in answers:
        show.line(f"{answer.name}: {answer.answer}")


def _apply_one(ask: operation.Runner, source: WebhookSource) -> AppliedSource:
    definition = source.model_dump(mode="json", exclude_defaults=True)
    applied: AppliedSource = ask(
        lambda operations: webhooks.apply_source(
            operations, source.name, definition={**definition, "name": source.name}
        )
    )
    return applied


@verb(app, "list", webhooks.list_sources, example="helixq webhook list")
def _list(page: Page[WebhookSourceRow]) -> None:
    show.table(
        ("source", "scheme", "secrets", "newest secret", "applied", "by"),
        [
            (row.name, row.scheme, str(row.secrets), row.secret_since or "", row.applied_at,
             row.applied_by)
            for row in page.rows
        ],
        empty="no sources",
    )  # fmt: skip


@verb(app, "show", webhooks.show_source, example="helixq webhook show stripe")
def _show(row: WebhookSourceRow) -> None:
    for name, value in shapes.plain(row).items():
        if name != "definition":
            show.line(f"{name:<14}{'' if value is None else value}")
    for mapping in source_of({**row.definition}).mappings:
        to = f"queue {mapping.queue}" if mapping.queue else "an effect in Python"
        show.line(f"{', '.join(mapping.events)} > {to}, order {mapping.order}")


def _read_secret(path: str) -> str:
    text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    return text.strip()


@verb(
    app,
    "rotate",
    webhooks.rotate_secret,
    example="helixq webhook rotate stripe --secret-file - < secret",
    more={
        "secret": Annotated[
            str,
            option(
                "--secret-file FILE",
                "File with the secret that the provider shows; - for standard input.",
                parser=_read_secret,
            ),
        ]
    },
)
def _rotate(rotated: RotatedSecret) -> None:
    show.line(f"{rotated.name}: secret {rotated.number} is valid", "green")


@dataclass(frozen=True, slots=True)
class TriedEvent:
    """What a delivery would become."""

    event: str
    type: str
    queue: str | None
    identity: str | tuple[str, ...] | None
    revision: str | None
    entity: str | None
    version: str | None
    order: str | None
    problem: str | None  # why it would be a dead letter, or ignored


def _try(
    operations: Operations, name: str, body: bytes, header: Iterable[str]
) -> Instructions[TriedEvent]:
    row = yield from webhooks.show_source(operations, name)
    pairs = [text.partition(":")[::2] for text in header]
    headers = [(key.strip().encode(), value.strip().encode()) for key, value in pairs]
    document = events.read_body(body)
    event, mapping, poison = events.read_event(source_of({**row.definition}), headers, document)
    if mapping is None:
        problem = "the source has no mapping for this type: the event is ignored"
        return TriedEvent(event.id, event.type, *(None,) * 6, problem)
    prepared = yield from webhooks.prepare_event(operations, mapping, event, poison)
    return TriedEvent(
        *(event.id, event.type, mapping.queue, prepared.identity, prepared.revision, event.entity),
        *(event.version, mapping.order),
        None if prepared.poison is None else prepared.poison.detail,
    )


@command(app, "test", example="helixq webhook test stripe --body event.json")
@connection.service_or_database
def _test(
    *,
    name: Annotated[str, argument("NAME", "Name of the source.")],
    body: Annotated[Path, option("--body FILE", "File with the body of a delivery.")],
    header: Annotated[
        list[str] | None,
        option("--header TEXT", "Header such as 'X-GitHub-Event: push'; repeat for several."),
    ] = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what a delivery would become.

    Nothing is sent, and no signature is checked. Exit code 1 if it would be ignored or become a
    dead letter.
    """
    with connection.open_target() as target:
        ask = operation.Runner(target, tenant)
        tried = ask(lambda operations: _try(operations, name, body.read_bytes(), header or ()))
    shown: dict[str, Any] = shapes.plain(tried)
    if as_json:
        show.as_json(shown)
    for key, value in shown.items():
        if value is not None and not as_json:
            show.line(f"{key:<10}{value}")
    if tried.problem is not None:
        raise typer.Exit(Exit.NO)
