"""`helixq serve`."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from helixqueue.cli import connection, options, show
from helixqueue.cli.command import command
from helixqueue.cli.options import option
from helixqueue.errors import NotInstalled
from helixqueue.fence.key_file import find_keys
from helixqueue.log import terminal

NO_SERVICE = "serve starts a service on a database; run it with --dsn"

ListenDsn = Annotated[
    str | None,
    option(
        "--listen-dsn DSN",
        "Direct connection past pgbouncer that wakes waiting workers.",
        env="HELIX_LISTEN_DSN",
    ),
]


def register(app: typer.Typer) -> None:
    add = command(app, "serve", example='helixq serve --dsn "$SERVICE_DSN" --port 8080')
    add(connection.without_service(NO_SERVICE)(_serve))


DsnOption = Annotated[
    str | None, option("--dsn DSN", "The database, with the service's login.", env="HELIX_DSN")
]
PortOption = Annotated[
    int, option("--port PORT", "Port to listen on; 0 selects a free one.", min=0, max=65535)
]
MaxPendingOption = Annotated[
    int,
    option(
        "--max-pending N",
        "Maximum pending batches per queue; more are refused with 429.",
        min=1,
        max=100000,
    ),
]
RateOption = Annotated[
    float,
    option("--rate N", "Maximum requests per second and token; more are refused with 429.", min=1),
]
MetricsTenantOption = Annotated[
    str | None,
    option("--metrics-tenant NAME", "Only tokens of this tenant read the metrics of all tenants."),
]

SealTo = Annotated[
    Path | None,
    option(
        "--seal-to DIR",
        "Write seals of the ledger to this directory.",
        exists=True,
        file_okay=False,
    ),
]
SealEvery = Annotated[float, option("--seal-every SECONDS", "Time between two seals.", min=1)]

PolicyFile = Annotated[
    Path | None, option("--policy FILE", "idempotency.yml for the service's own writes.")
]

RedisOption = Annotated[
    str | None,
    option(
        "--redis URL",
        "Redis of stream intakes: the service reads lag and age for its metrics.",
        parser=options.redis_url,
    ),
]

ConnectionsOption = Annotated[
    int, option("--connections N", "Maximum database connections.", min=1, max=1000)
]
MemoryOption = Annotated[
    int,
    option(
        "--memory MIB",
        "Memory of the process; request bodies wait when they would exceed it.",
        min=384,
        max=1024 * 1024,
    ),
]
AllowedHostOption = Annotated[
    list[str] | None,
    option("--allowed-host NAME", "Refuse requests to other host names than this one; repeatable."),
]
TrustedProxyOption = Annotated[
    list[str] | None,
    option(
        "--trusted-proxy ADDRESS", "Trust X-Forwarded-For from this address or network; repeatable."
    ),
]


def _serve(
    *,
    dsn: DsnOption = None,
    host: Annotated[str, option("--host ADDRESS", "Address to listen on.")] = "127.0.0.1",
    port: PortOption = 8080,
    pooled: Annotated[
        bool, option("--pooled", "The DSN is a pgbouncer in transaction mode.")
    ] = False,
    listen_dsn: ListenDsn = None,
    connections: ConnectionsOption = 10,
    memory: MemoryOption = 512,
    max_pending: MaxPendingOption = 100_000,
    rate: RateOption = 500.0,
    allowed_host: AllowedHostOption = None,
    trusted_proxy: TrustedProxyOption = None,
    metrics_tenant: MetricsTenantOption = None,
    policy: PolicyFile = None,
    key: options.Key = None,
    seal_to: SealTo = None,
    seal_every: SealEvery = 3600.0,
    redis: RedisOption = None,
    as_json: Annotated[bool, option("--json", "Print the URL as JSON.")] = False,
) -> None:
    """Serve the HTTP API until a signal.

    The login must be bound with `helix.bind_v1(login, '*', true)`, so that each request sees only
    the tenant of its token. With a key file, the service signs receipts and publishes its keys.
    """
    terminal.select_log_mode()
    if dsn is None:
        raise typer.BadParameter(
            "expected --dsn or HELIX_DSN with the service's login, got neither; "
            "`helixq up` runs a service on embedded servers"
        )
    try:
        from helixqueue.dashboard.app import create_app  # noqa: PLC0415 - not in every
        from helixqueue.fence.policy_file import read_policy  # noqa: PLC0415
        from helixqueue.service.run import serve  # noqa: PLC0415 - installation has the service
        from helixqueue.service.settings import ServiceSettings  # noqa: PLC0415
    except ImportError as error:
        raise NotInstalled(error.name, "service") from error

    def listening(url: str) -> None:
        if as_json or not sys.stdout.isatty():  # a journal has both streams
            show.json_line(f"serving {url}", url=url)
        else:
            show.line(f"serving {url}")
        sys.stdout.flush()

    settings = ServiceSettings(
        dsn,
        pooled=pooled,
        listen_dsn=listen_dsn,
        connections=connections,
        memory=memory * 2**20,
        max_pending=max_pending,
        metrics_tenant=metrics_tenant,
        requests_per_second=rate,
        burst=math.ceil(rate * 2),
        allowed_hosts=tuple(allowed_host or ()),
        trusted_proxies=tuple(trusted_proxy or ()),
        policy=None if policy is None else read_policy(policy),
        keys=find_keys(key),
        seal_to=seal_to,
        seal_seconds=seal_every,
        redis=redis,
    )
    serve(settings, create_app, host=host, port=port, listening=listening, warn=show.warning)
