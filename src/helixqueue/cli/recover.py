"""`helixq recover`."""

from __future__ import annotations

from dataclasses import asdict

import typer

from helixqueue.cli import show, target
from helixqueue.operate.recover import recover

WHY = "recover ends the leases of every tenant, which no token may: run it with --dsn or --data"


def register(app: typer.Typer) -> None:
    app.command("recover")(target.without_service(WHY)(_recover))


def _recover(
    *,
    reason: target.Reason,
    actor: target.Actor = None,
    dsn: target.Dsn = None,
    data: target.Data = None,
    as_json: target.AsJson = False,
) -> None:
    """End every lease after a restore or a split.

    Begins a new epoch: whoever still holds a token from before is refused from now on, and the
    work goes back to its queue. Needs an operator's role.
    """
    with target.opened(dsn, data, as_owner=True) as database:
        recovered = recover(database.connection, reason=reason, actor=actor)
    if as_json:
        show.as_json(asdict(recovered))
    else:
        typer.echo(
            f"epoch {recovered.epoch}; {recovered.ended} leases ended, "
            f"{recovered.doubted} effects in doubt"
        )
