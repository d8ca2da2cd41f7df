"""The options of `helixq up`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from helixqueue.cli import options
from helixqueue.cli.options import option

PORT: Final = 8080
WORKERS: Final = 2
# Its own directory: `make run` and programs that use ./helix-data do not meet.
DEMO_DATA: Final = Path("helix-demo")

ServiceDsn = Annotated[
    str | None,
    option("--dsn DSN", "Use this PostgreSQL, with the service's login. [env: HELIX_DSN]"),
]
OwnerDsn = Annotated[
    str | None,
    option(
        "--owner-dsn DSN",
        "Owner of that database: migrate it, and grant --dsn its role.",
        env="HELIX_OWNER_DSN",
    ),
]
WorkDsn = Annotated[
    str | None, option("--work-dsn DSN", "Login of the local workers, for use with --dsn.")
]
Redis = Annotated[
    str | None,
    option(
        "--redis URL",
        "Use this Redis or Valkey instead of the embedded one.",
        parser=options.redis_url,
    ),
]
IntakeFile = Annotated[
    Path | None,
    option("--intake FILE", "Settings of the stream intake (TOML), instead of the default one."),
]
NoIntake = Annotated[bool, option("--no-intake", "Run no stream intake.")]
IntakeDsn = Annotated[
    str | None,
    option("--intake-dsn DSN", "Login of the intake, for use with --dsn.", env="HELIX_INTAKE_DSN"),
]
Host = Annotated[str, option("--host ADDRESS", "Address to listen on.")]
Port = Annotated[
    int | None,
    option(
        "--port PORT",
        f"Port to listen on; 0 selects a free one. [default: {PORT}, or a free one]",
        min=0,
        max=65535,
    ),
]
Tenant = Annotated[
    str | None,
    option(
        "--tenant NAME",
        "Tenant of the login link, the intake and the workers. [env: HELIX_TENANT, default: "
        f"{options.DEFAULT_TENANT}]",
        env="HELIX_TENANT",
    ),
]
App = Annotated[
    str | None, option("--app MODULE", "Run local workers with the handlers of this module.")
]
Workers = Annotated[
    int | None,
    option(
        "--workers N", f"Number of local workers. [default with --app: {WORKERS}]", min=0, max=64
    ),
]
Demo = Annotated[bool, option("--demo", "Also run a demo workload, by default in ./helix-demo.")]
Seconds = Annotated[float | None, option("--for SECONDS", "Stop after this time.", min=0)]
Open = Annotated[bool, option("--open", "Open the dashboard in a browser.")]


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
