"""`helixq secret`: the secret in the database that fingerprints are made with."""

from __future__ import annotations

import typer

from helixqueue.cli import connection, options, show
from helixqueue.cli.command import command
from helixqueue.engine import calls

app = typer.Typer(no_args_is_help=True, help="Fingerprint secret: rotate.")
NO_SERVICE = "all tenants share the secret, so no token may rotate it; run it with --dsn or --data"


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="secret")


@app.callback()
def _secret() -> None:
    """Fingerprint secret: rotate."""


@command(app, "rotate", example='helixq secret rotate --dsn "$OWNER_DSN"')
@connection.database_only(NO_SERVICE)
def _rotate(*, as_json: options.AsJson = False) -> None:
    """Make a new secret for the fingerprints of new work.

    A fingerprint is an HMAC of a payload; its secret never leaves the database. Old fingerprints
    keep the secret they were made with, so repeats still compare. Needs an operator's login or the
    owner's. (The key that signs receipts and seals is another one: `helixq key rotate`.)
    """
    with connection.open_database(as_owner=True) as database:
        number = database.run(calls.rotate_secret())
    if as_json:
        show.as_json({"secret": number})
    else:
        show.line(f"secret {number} makes the fingerprints of new work", "green")
