"""`helixq seal make | list`; `make` can be left out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from helixqueue.cli import connection, options, show
from helixqueue.cli.command import command
from helixqueue.cli.derived_commands import verb
from helixqueue.cli.options import option
from helixqueue.fence.key_file import public_document, publish_beside, read_keys
from helixqueue.operate.exported import write_export
from helixqueue.operate.seal import SEALS, add_after_missing, last_head, make_seal
from helixqueue.operate.signed_series import document_id
from helixqueue.operations import seals
from helixqueue.transport.http import checks

if TYPE_CHECKING:
    from helixqueue.records.page import Page
    from helixqueue.records.seal import SealRow


class _MakeByDefault(TyperGroup):
    """Options without a command are those of `make`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - click's own type
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["make", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_MakeByDefault, no_args_is_help=True, help="Signed seals of the ledger: make, list."
)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="seal")


@verb(app, "list", seals.list_seals, example="helixq seal list", every_tenant=True)
def _list(page: Page[SealRow]) -> None:
    show.table(
        ("seal", "time", "by", "up to", "digest"),
        [(str(row.number), row.at, row.actor, row.to_position, row.digest) for row in page.rows],
        empty="the services have made no seals",
        optional=("up to", "by"),
    )


@command(app, "make", example="helixq seal make --to /mnt/audit/seals.jsonl")
@connection.service_or_database
def _seal(
    *,
    to: Annotated[
        Path,
        option(
            "--to PATH",
            "File that gets one line per seal, or a directory that gets one file per seal.",
            show_default=False,
        ),
    ],
    export: Annotated[
        Path | None,
        option(
            "--export FILE",
            "Also append the sealed ledger entries to this JSONL file, for auditors, with the "
            "public keys in FILE.keys.json.",
        ),
    ] = None,
    key: options.Key = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a signed seal of the ledger.

    `check --against` compares the database with it. Covers all tenants, and everything since the
    last seal in that place; takes no lock. Keep the place outside of the database server, where its
    administrators cannot write. Over --url, the service signs with its own key and continues its
    own series, of which seals that the place lacks are added; the token needs the scope seal.
    """
    seal, file = _make(key, to)
    if export is not None:
        if connection.selected().service is not None:
            raise typer.BadParameter("--export reads the database itself; select it with --dsn")
        with connection.open_database(as_owner=True) as database:
            write_export(database.connection, seal, export)
        publish_beside(export, public_document(read_keys(key)))
    if as_json:
        shown = {name: value for name, value in seal.items() if name != "pages"}
        digest = document_id(seal)
        show.as_json({**shown, "pages": len(seal["pages"]), "digest": digest, "file": str(file)})
    else:
        counts = ", ".join(f"{number:,} {kind}" for kind, number in sorted(seal["counts"].items()))
        show.line(f"seal {seal['number']} in {file}: {counts or 'nothing yet'}", "green")


def _make(key: Path | None, to: Path) -> tuple[dict[str, Any], Path]:
    if connection.selected().service is not None:
        if key is not None:
            raise typer.BadParameter("--key: a service signs with its own key; remove this option")
        with connection.open_target() as target:
            seal: dict[str, Any] = target.run(checks.seal())
            return seal, add_after_missing(
                to, seal, lambda number: target.run(checks.show_seal(number))["document"]
            )
    previous = last_head(to)
    signer = read_keys(key)[-1].signer
    with (
        connection.open_database(as_owner=True) as database,
        show.bar("sealing", "records", None),
    ):
        seal = make_seal(database.connection, signer, previous)
    return seal, SEALS.add(to, seal)
