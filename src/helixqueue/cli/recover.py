"""`helixq recover`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helixqueue.cli import connection, options, show
from helixqueue.cli.command import command
from helixqueue.operate.recover import recover

if TYPE_CHECKING:
    import typer

NO_SERVICE = (
    "recover ends the leases of every tenant, which no token permits; run it with --dsn or --data"
)


def register(app: typer.Typer) -> None:
    add = command(app, "recover", example='helixq recover --reason "restored the backup of 03:00"')
    add(connection.database_only(NO_SERVICE)(_recover))


def _recover(
    *,
    reason: options.Reason,
    actor: options.Actor = None,
    as_json: options.AsJson = False,
) -> None:
    """End every lease after a restore or a split brain.

    Starts a new epoch: tokens from before are refused, and leased batches return to their queue.
    Needs an operator's login or the owner's.
    """
    with connection.open_database(as_owner=True) as database:
        recovered = recover(database.connection, reason=reason, actor=actor)
    if as_json:
        show.as_json(recovered._asdict())
    else:
        show.line(
            f"epoch {recovered.epoch}: {recovered.ended} leases ended, "
            f"{recovered.doubted} effects in doubt"
        )
