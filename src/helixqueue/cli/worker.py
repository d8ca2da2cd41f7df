"""`helixq worker list`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from helixqueue.cli import connection, pages, shapes, show, times

if TYPE_CHECKING:
    from collections.abc import Mapping

app = typer.Typer(no_args_is_help=True, help="Workers: list.")


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="worker")


@app.callback()
def _workers() -> None:
    """Workers: list."""


@app.command("list")
@connection.over_http
def _list(
    *,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Only those heard of since: 2026-03-01T08:00, or 5m.",
            show_default=False,
        ),
    ] = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    as_json: connection.AsJson = False,
) -> None:
    """List workers as they last said hello, and their leases.

    A database shows the workers of your login, an operator those of all; a service those of the
    token's tenant. Whoever was not heard of for 30 days is forgotten.
    """
    with connection.reached(dsn, data) as there:
        moment = None if since is None else times.moment(since)
        rows = list(pages.every(there, partial(there.reads.workers, since=moment)))
    if as_json:
        show.as_json({"workers": [shapes.worker(row) for row in rows]})
        return
    show.table(
        ("worker", "login", "leases", "free", "heard of", "first"),
        [
            (
                *(row.name, row.role or "", str(row.leases), _free(row.free)),
                *(times.shown(row.last_seen), times.shown(row.first_seen)),
            )
            for row in rows
        ],
    )


def _free(resources: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in resources.items() if amount)
