"""`helixq migrate`."""

from __future__ import annotations

from typing import Annotated

import typer

from helixqueue.cli import connection, show
from helixqueue.client.embedded_setup import set_up
from helixqueue.engine.migrate import migrate, print_sql

WHY = "migrate changes the schema of a database, as its owner: run it with --dsn or --data"


def register(app: typer.Typer) -> None:
    app.command("migrate")(connection.without_service(WHY)(_migrate))


def _migrate(
    *,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    sql: Annotated[
        bool, typer.Option("--print-sql", help="Print the script for psql; needs no database.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="REVISION", help="With --print-sql: start from there."),
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait for another migration.")
    ] = 120.0,
    as_json: connection.AsJson = False,
) -> None:
    """Bring a database to the schema this release needs.

    Needs a direct connection (no pgbouncer) as the owner of the database; no superuser.
    """
    if sql:
        script = print_sql(since)
        if as_json:
            show.as_json({"sql": script})
        else:
            typer.echo(script, nl=False)
        return
    if since is not None:
        raise typer.BadParameter("--since goes with --print-sql")
    with connection.target(dsn, data, create=True) as found:
        if found.postgres is None:
            done = migrate(found.owner_dsn, report=show.progress, wait_s=wait)
        else:
            # An embedded database serves its run-time role at once.
            done = set_up(found.postgres, show.progress, wait_s=wait)
    if as_json:
        changed = done.before != done.after
        show.as_json({"before": done.before, "after": done.after, "changed": changed})
    else:
        typer.echo(f"revision {done.after} (before: {done.before or 'none'})")
