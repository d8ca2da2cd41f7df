"""`helixq recover`."""

from __future__ import annotations

import typer

from helixqueue.cli import connection, show
from helixqueue.operate.recover import recover

WHY = "recover ends the leases of every tenant, which no token may: run it with --dsn or --data"


def register(app: typer.Typer) -> None:
    app.command("recover")(connection.without_service(WHY)(_recover))


def _recover(
    *,
    reason: connection.Reason,
    actor: connection.Actor = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """End every lease after a restore or a split.

    Begins a new epoch: whoever still holds a token from before is refused from now on, and the
    work goes back to its queue. Needs an operator's role.
    """
    with connection.opened(dsn, data, as_owner=True) as database:
        recovered = recover(database.connection, reason=reason, actor=actor)
    if as_json:
        show.as_json(recovered._asdict())
    else:
        typer.echo(
            f"epoch {recovered.epoch}; {recovered.ended} leases ended, "
            f"{recovered.doubted} effects in doubt"
        )
