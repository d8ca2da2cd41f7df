"""The options of `helixq up`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from helixqueue.cli import options

PORT: Final = 8080
WORKERS: Final = 2

ServiceDsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        help="Use this PostgreSQL, with the service's login. [env: HELIX_DSN]",
    ),
]
OwnerDsn = Annotated[
    str | None,
    typer.Option(
        "--owner-dsn",
        metavar="DSN",
        envvar="HELIX_OWNER_DSN",
        show_envvar=False,
        help="Owner of that database: migrate it, and grant --dsn its role. [env: HELIX_OWNER_DSN]",
    ),
]
WorkDsn = Annotated[
    str | None,
    typer.Option(
        "--work-dsn", metavar="DSN", help="Login of the local workers, for use with --dsn."
    ),
]
Redis = Annotated[
    str | None,
    typer.Option(
        "--redis",
        metavar="URL",
        parser=options.redis_url,
        help="Use this Redis or Valkey instead of the embedded one.",
    ),
]
IntakeFile = Annotated[
    Path | None,
    typer.Option(
        "--intake",
        metavar="FILE",
        help="Settings of the stream intake (TOML), instead of the default one.",
    ),
]
NoIntake = Annotated[bool, typer.Option("--no-intake", help="Run no stream intake.")]
IntakeDsn = Annotated[
    str | None,
    typer.Option(
        "--intake-dsn",
        metavar="DSN",
        envvar="HELIX_INTAKE_DSN",
        show_envvar=False,
        help="Login of the intake, for use with --dsn. [env: HELIX_INTAKE_DSN]",
    ),
]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        metavar="PORT",
        min=0,
        max=65535,
        help=f"Port to listen on; 0 selects a free one. [default: {PORT}, or a free one]",
    ),
]
App = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="MODULE", help="Run local workers with the handlers of this module."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=0,
        max=64,
        help=f"Number of local workers. [default with --app: {WORKERS}]",
    ),
]
Demo = Annotated[
    bool,
    typer.Option(
        "--demo",
        help="Also run a demo workload, by default in ./helix-demo.",
    ),
]
Seconds = Annotated[
    float | None, typer.Option("--for", metavar="SECONDS", min=0, help="Stop after this time.")
]
Open = Annotated[bool, typer.Option("--open", help="Open the dashboard in a browser.")]


@dataclass(frozen=True)
class UpOptions:
    """The options of `helixq up` after validation."""

    dsn: str | None
    owner_dsn: str | None
    work_dsn: str | None
    data: Path
    redis: str | None
    intake: Path | None
    no_intake: bool
    intake_dsn: str | None
    host: str
    port: int | None
    app: str | None
    workers: int
    tenant: str
    demo: bool
    seconds: float | None
    open: bool
    as_json: bool
