"""Which database a command means.

What is typed wins over what is set: `--dsn` or `--data`, then HELIX_DSN, then HELIX_DATA, then
./helix-data. A directory means the embedded servers: they are started or joined for as long as the
command runs.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from helixqueue.cli import show
from helixqueue.embedded import Servers

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_DATA = Path("helix-data")

Dsn = Annotated[
    str | None,
    typer.Option("--dsn", metavar="DSN", help="The database, else HELIX_DSN.", show_default=False),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Embedded servers in this directory, else HELIX_DATA, else ./helix-data.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


@contextmanager
def database(
    dsn: str | None, data: Path | None, *, as_owner: bool = False, create: bool = False
) -> Iterator[str]:
    """The DSN to use; says on standard error which one it is.

    `as_owner` asks an embedded server for the migrator's DSN, `create` allows a new data directory.
    """
    if dsn is not None and data is not None:
        raise typer.BadParameter("give --dsn or --data, not both")
    if dsn is None and data is None:
        dsn = os.environ.get("HELIX_DSN") or None
    if dsn is not None:
        show.progress(f"database: {_without_password(dsn)}")
        yield dsn
        return
    directory = data or Path(os.environ.get("HELIX_DATA") or DEFAULT_DATA)
    if not create and not (directory / "postgres").is_dir():
        raise typer.BadParameter(
            f"no database: expected --dsn, HELIX_DSN or embedded servers in {directory}/ and found "
            "none; name one, or create that directory with `helixq migrate`"
        )
    show.progress(f"database: embedded, in {directory.resolve()}")
    # Only PostgreSQL: these commands have no use for Valkey.
    with Servers(directory).postgres.start(show.progress) as postgres:
        yield postgres.migrator_dsn if as_owner else postgres.dsn


def _without_password(dsn: str) -> str:
    """Where it leads, as key=value; the password never reaches a screen or a log."""
    try:
        parts = conninfo_to_dict(dsn)
    except ProgrammingError as error:
        raise typer.BadParameter(f"expected a DSN, got one that does not parse: {error}") from None
    return " ".join(
        f"{name}={parts[name]}" for name in ("host", "port", "dbname", "user") if name in parts
    )
