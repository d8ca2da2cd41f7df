"""`helixq migrate`."""

from __future__ import annotations

from typing import Annotated

import typer

from helixqueue.cli import connection, options, show
from helixqueue.cli.command import command
from helixqueue.cli.options import option
from helixqueue.client.embedded_setup import set_up
from helixqueue.engine.migrate import migrate, print_sql

NO_SERVICE = "migrate changes the schema as the owner of the database; run it with --dsn or --data"


def register(app: typer.Typer) -> None:
    add = command(app, "migrate", example='helixq migrate --dsn "$OWNER_DSN"')
    add(connection.database_only(NO_SERVICE)(_migrate))


def _migrate(
    *,
    sql: Annotated[
        bool, option("--print-sql", "Print the SQL script for psql; uses no database.")
    ] = False,
    since: Annotated[
        str | None,
        option("--since REVISION", "With --print-sql: only changes after this revision."),
    ] = None,
    wait: Annotated[
        float, option("--wait SECONDS", "Maximum wait for another migration.", min=0)
    ] = 120.0,
    as_json: options.AsJson = False,
) -> None:
    """Update a database to the schema of this release.

    Needs a direct connection (not pgbouncer) as the owner of the database, not as a superuser.
    """
    if sql:
        script = print_sql(since)
        if as_json:
            show.as_json({"sql": script})
        else:
            typer.echo(script, nl=False)
        return
    if since is not None:
        raise typer.BadParameter("--since requires --print-sql")
    with connection.database_target(create=True) as target:
        if target.postgres is None:
            done = migrate(target.owner_dsn, report=show.progress, wait_s=wait)
        else:
            # Also grants the run-time login its role, so that programs can connect at once.
            done = set_up(target.postgres, show.progress, wait_s=wait)
    if as_json:
        changed = done.before != done.after
        show.as_json({"before": done.before, "after": done.after, "changed": changed})
    else:
        typer.echo(f"revision {done.after} (before: {done.before or 'none'})")
