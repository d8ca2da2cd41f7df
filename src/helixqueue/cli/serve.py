"""`helixq serve`."""

from __future__ import annotations

import math
import sys
from pathlib import Path  # noqa: TC003 - Typer reads the annotations
from typing import Annotated

import typer

from helixqueue.cli import connection, show
from helixqueue.errors import NotInstalled

WHY = "serve is a service itself, and is about the database behind it: run it with --dsn"


ListenDsn = Annotated[
    str | None,
    typer.Option(
        "--listen-dsn",
        metavar="DSN",
        envvar="HELIX_LISTEN_DSN",
        show_envvar=False,
        help="The same past pgbouncer, one connection that wakes waiting workers.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    app.command("serve")(connection.without_service(WHY)(_serve))


def _serve(
    *,
    dsn: Annotated[
        str | None,
        typer.Option(
            "--dsn",
            envvar="HELIX_DSN",
            show_envvar=False,
            help="The database, as the service's own role; else HELIX_DSN.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free one.")] = 8080,
    pooled: Annotated[
        bool, typer.Option("--pooled", help="The DSN leads through pgbouncer, transaction mode.")
    ] = False,
    listen_dsn: ListenDsn = None,
    connections: Annotated[
        int, typer.Option("--connections", min=1, max=1000, help="To the database, at most.")
    ] = 10,
    max_pending: Annotated[
        int, typer.Option("--max-pending", min=1, max=100000, help="Of one queue; then 429.")
    ] = 100_000,
    rate: Annotated[
        float, typer.Option("--rate", min=1, help="Requests a second of one token; then 429.")
    ] = 500.0,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", help="An idempotency.yml for the writes.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say the address in JSON.")] = False,
) -> None:
    """Serve the HTTP API until a signal ends it.

    The DSN's role must be bound by setting, so that each request sees its token's tenant alone.
    """
    if dsn is None:
        raise typer.BadParameter(
            "--dsn or HELIX_DSN: expected the database of the service, as the service's own role; "
            "`helixq up` makes one if there is none"
        )
    try:
        from helixqueue.fence.policy_file import read_policy  # noqa: PLC0415 - not in every
        from helixqueue.service.run import serve  # noqa: PLC0415 - installation
        from helixqueue.service.settings import ServiceSettings  # noqa: PLC0415
    except ImportError as error:
        raise NotInstalled(error.name, "service") from error

    def listening(url: str) -> None:
        if as_json:
            show.as_json({"url": url})
        else:
            show.line(f"serving {url}")
        sys.stdout.flush()

    settings = ServiceSettings(
        dsn,
        pooled=pooled,
        listen_dsn=listen_dsn,
        connections=connections,
        max_pending=max_pending,
        requests_per_second=rate,
        burst=math.ceil(rate * 2),
        policy=None if policy is None else read_policy(policy),
    )
    serve(settings, host=host, port=port, listening=listening, warn=show.progress)
