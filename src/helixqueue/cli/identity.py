"""`helixq identity refused | twins`."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from helixqueue.cli import connection, operation, options, show
from helixqueue.cli.command import command
from helixqueue.cli.derived_commands import verb
from helixqueue.cli.options import argument
from helixqueue.cli.unicode_diff import identity_text
from helixqueue.identity import escaped
from helixqueue.identity.twins import find_twins
from helixqueue.operations import identities, queues
from helixqueue.records.batch import identity_value

if TYPE_CHECKING:
    from helixqueue.identity.twins import TwinGroup
    from helixqueue.records.identity import RefusedIdentityRow
    from helixqueue.records.page import Page

app = typer.Typer(no_args_is_help=True, help="Identities: refused, twins.")

# Bytes that are not UTF-8, as Python decodes them, are shown as bytes.
_NOT_UTF8: Final = re.compile(r"\\u\{dc([89a-f][0-9a-f])\}")
_BYTE: Final = r"\\x\1"

InQueue = Annotated[str, argument("QUEUE", "Name of the queue.")]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="identity")


@verb(
    app,
    "refused",
    identities.list_refused,
    example="helixq identity refused basecall",
    every_tenant=True,
)
def _refused(page: Page[RefusedIdentityRow]) -> None:
    show.table(
        ("time", "times", "text", "reason", "by", "raw bytes", "tenant"),
        [(r.at, str(r.times), _text(r), r.why, r.actor, r.raw_hex, r.tenant) for r in page.rows],
        empty="no refused identities",
        optional=("time", "by", "times", "tenant"),
    )


def _text(row: RefusedIdentityRow) -> str:
    """The bytes as text, with escapes for everything that is not printable ASCII."""
    text = escaped(bytes.fromhex(row.raw_hex).decode("utf-8", "surrogateescape"))
    return f"'{_NOT_UTF8.sub(_BYTE, text)}'"


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
    number = 0
    found: list[tuple[str, TwinGroup]] = []
    with connection.open_target() as target:
        ask = operation.Runner(target, tenant, every_tenant=True)
        # Identities of several tenants are no twins of each other.
        owners = ask(partial(queues.tenants_of, queue=queue))
        for owner in owners:
            of_owner = operation.Runner(target, owner or None, every_tenant=True)
            stored = of_owner(partial(identities.stored_identities, queue=queue))
            number += len(stored)
            found += [(owner, group) for group in find_twins(stored)]
    if as_json:
        twins = [
            {"kind": g.kind, "members": [identity_value(m.canonical) for m in g.members]}
            | ({"tenant": owner} if len(owners) > 1 else {})
            for owner, g in found
        ]
        show.as_json({"identities": number, "twins": twins})
        return
    show.table(
        ("kind", "identities", "code points", "tenant"),
        [
            (
                group.kind,
                "\n".join(names := [identity_text(member.raw) for member in group.members]),
                "\n".join(map(escaped, names)),
                owner,
            )
            for owner, group in found
        ],
        empty=f"no twins among {number} identities",
        optional=("tenant",),
    )
