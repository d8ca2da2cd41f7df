"""`helixq serve`."""

from __future__ import annotations

import math
import sys
from pathlib import Path  # noqa: TC003 - Typer reads the annotations
from typing import Annotated

import typer

from helixqueue.cli import connection, show
from helixqueue.cli.command import command
from helixqueue.errors import NotInstalled

NO_SERVICE = "serve starts a service on a database; run it with --dsn"

ListenDsn = Annotated[
    str | None,
    typer.Option(
        "--listen-dsn",
        metavar="DSN",
        envvar="HELIX_LISTEN_DSN",
        show_envvar=False,
        help="Direct connection past pgbouncer that wakes waiting workers. [env: HELIX_LISTEN_DSN]",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    add = command(app, "serve", example='helixq serve --dsn "$SERVICE_DSN" --port 8080')
    add(connection.without_service(NO_SERVICE)(_serve))


DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        envvar="HELIX_DSN",
        show_envvar=False,
        help="The database, with the service's login. [env: HELIX_DSN]",
        show_default=False,
    ),
]
PortOption = Annotated[
    int,
    typer.Option(
        "--port",
        metavar="PORT",
        min=0,
        max=65535,
        help="Port to listen on; 0 selects a free one.",
    ),
]
MaxPendingOption = Annotated[
    int,
    typer.Option(
        "--max-pending",
        metavar="N",
        min=1,
        max=100000,
        help="Maximum pending batches per queue; more are refused with 429.",
    ),
]
RateOption = Annotated[
    float,
    typer.Option(
        "--rate",
        metavar="N",
        min=1,
        help="Maximum requests per second and token; more are refused with 429.",
    ),
]


def _serve(
    *,
    dsn: DsnOption = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    port: PortOption = 8080,
    pooled: Annotated[
        bool, typer.Option("--pooled", help="The DSN is a pgbouncer in transaction mode.")
    ] = False,
    listen_dsn: ListenDsn = None,
    connections: Annotated[
        int,
        typer.Option(
            "--connections", metavar="N", min=1, max=1000, help="Maximum database connections."
        ),
    ] = 10,
    max_pending: MaxPendingOption = 100_000,
    rate: RateOption = 500.0,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="idempotency.yml for the service's own writes.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the URL as JSON.")] = False,
) -> None:
    """Serve the HTTP API until a signal.

    The login must be bound with `helix.bind_v1(login, '*', true)`, so that each request sees only
    the tenant of its token.
    """
    if dsn is None:
        raise typer.BadParameter(
            "expected --dsn or HELIX_DSN with the service's login, got neither; "
            "`helixq up` runs a service on embedded servers"
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
