"""`helixq identity refused | twins`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, options, pages, show, times
from helixqueue.cli.command import command
from helixqueue.identity.canonical import Identity
from helixqueue.identity.twins import find_twins
from helixqueue.records.batch import identity_value

if TYPE_CHECKING:
    from helixqueue.records.identity import RefusedIdentityRow

app = typer.Typer(no_args_is_help=True, help="Identities: refused, twins.")

InQueue = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="identity")


@command(app, "refused", example="helixq identity refused basecall")
@connection.service_or_database
def _refused(
    queue: InQueue,
    *,
    limit: options.Limit = 50,
    after: options.After = None,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """List identities that were refused, newest first.

    With the reason and the raw bytes in hex, so that a lab can find the tube or the row of a sheet.
    """
    with connection.open_target() as target:
        owner = connection.tenant_to_change(target, tenant)

        def read(**page: Any) -> Any:  # noqa: ANN401 - a page of either transport
            return target.reads.refused(tenant=owner, queue=queue, **page)

        rows, cursor = pages.read_rows(target, read, limit, after)
    if as_json:
        listed = [asdict(row) | {"at": row.at.isoformat()} for row in rows]
        show.as_json({"refused": listed, "next": cursor})
        return
    show.table(
        ("time", "text", "raw bytes", "reason", "by"),
        [(times.to_seconds(r.at), _text(r), r.raw_hex, r.why, r.actor) for r in rows],
        empty="no refused identities",
    )
    pages.print_next(cursor)


def _text(row: RefusedIdentityRow) -> str:
    """The bytes as text, with escapes for everything that is not printable ASCII."""
    return ascii(bytes.fromhex(row.raw_hex).decode("utf-8", "backslashreplace"))


@command(app, "twins", example="helixq identity twins basecall")
@connection.service_or_database
def _twins(
    queue: InQueue,
    *,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """List identities that are easily confused.

    `spelling`: several spellings of one batch. `case` and `look-alike` (width, letters of other
    scripts): several batches, perhaps by mistake. Nothing is merged.
    """
    with connection.open_target() as target:
        owner = connection.tenant_to_change(target, tenant)

        def read(**page: Any) -> Any:  # noqa: ANN401 - a page of either transport
            return target.reads.identities(tenant=owner, queue=queue, **page)

        stored = list(pages.read_all(target, read))
    groups = find_twins(Identity(row.raw or row.identity, row.identity, "") for row in stored)
    if as_json:
        show.as_json(
            {
                "identities": len(stored),
                "twins": [
                    {"kind": g.kind, "members": [identity_value(m.canonical) for m in g.members]}
                    for g in groups
                ],
            }
        )
        return
    show.table(
        ("kind", "identities", "code points"),
        [
            (
                group.kind,
                "\n".join("/".join(member.raw) for member in group.members),
                "\n".join(ascii("/".join(member.raw)) for member in group.members),
            )
            for group in groups
        ],
        empty=f"no twins among {len(stored)} identities",
    )
