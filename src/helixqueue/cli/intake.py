"""`helixq intake run|status`."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from helixqueue.cli import connection, options, show
from helixqueue.cli.command import command
from helixqueue.cli.derived_commands import verb
from helixqueue.cli.options import option
from helixqueue.log import terminal
from helixqueue.operations import intakes
from helixqueue.operations.letters import list_letters

if TYPE_CHECKING:
    from helixqueue.cli.operation import Runner
    from helixqueue.records.letter import IntakeRow
    from helixqueue.records.page import Page

app = typer.Typer(no_args_is_help=True, help="Intakes of Redis Streams: run, status.")
NO_SERVICE = "an intake works on a database; run it with --dsn or --data"
HEALTHY: Final = ("reading", "stopped")


Config = Annotated[Path | None, option("--config FILE", "TOML file with these settings.")]
Redis = Annotated[
    str | None,
    option(
        "--redis URL",
        "Redis or Valkey. Its password is read from HELIX_REDIS_PASSWORD or a file.",
        parser=options.redis_url,
    ),
]
PasswordFile = Annotated[
    str | None, option("--redis-password-file FILE", "File with the password of Redis.")
]
Stream = Annotated[str | None, option("--stream NAME", "Stream to read.")]
Group = Annotated[str | None, option("--group NAME", "Consumer group. [default: helixqueue]")]
Consumer = Annotated[
    str | None, option("--consumer NAME", "Stable name of this consumer. [default: the host name]")
]
Queues = Annotated[
    list[str] | None,
    option(
        "--queue QUEUE", "Queue that messages may name; repeatable. '*': every queue of the tenant."
    ),
]
Count = Annotated[
    int | None,
    option("--count N", "Entries per read and transaction. [default: 32]", min=1, max=10_000),
]
Idle = Annotated[
    float | None,
    option(
        "--idle SECONDS",
        "Take over entries that are pending for this long. [default: 120]",
        min=0.01,
    ),
]
Trim = Annotated[bool, option("--trim", "Delete entries that every group has acknowledged.")]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="intake")


@app.callback()
def _intakes() -> None:
    """Intakes of Redis Streams: run, status."""


def _run(
    *,
    config: Config = None,
    redis: Redis = None,
    redis_password_file: PasswordFile = None,
    stream: Stream = None,
    group: Group = None,
    consumer: Consumer = None,
    queues: Queues = None,
    count: Count = None,
    idle: Idle = None,
    trim: Trim = False,
    tenant: options.Tenant = None,
    as_json: options.AsJson = False,
) -> None:
    """Submit the entries of a stream until SIGTERM.

    SIGTERM finishes the current chunk. Entries are acknowledged after the commit. Messages that
    cannot become batches are dead letters.
    """
    from helixqueue.intake import log_to  # noqa: PLC0415
    from helixqueue.intake.loop import Intake  # noqa: PLC0415 - not in every installation
    from helixqueue.intake.settings import read_settings  # noqa: PLC0415

    named = {
        "redis": redis,
        "redis_password_file": redis_password_file,
        "stream": stream,
        "group": group,
        "consumer": consumer,
        "queues": queues,
        "count": count,
        "idle": idle,
        "trim": trim or None,
        "tenant": tenant,
    }
    json_log = terminal.select_log_mode()
    settings = read_settings(config, named)
    stop = threading.Event()
    with connection.database_target() as target:
        log_to(logging.StreamHandler(sys.stderr), as_json=json_log)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        intake = Intake(settings, lambda: target.dsn, stop)
        show.progress(f"intake: stream {settings.stream}, group {settings.group}")
        intake.run()
    counters = intake.counters
    summary = (
        f"read {counters.read}, new {counters.new}, duplicate {counters.duplicate}, "
        f"dead letters {counters.letters}, acknowledged {counters.acknowledged}"
    )
    if as_json:
        show.json_line(summary, **asdict(counters))
    else:
        show.line(summary)


command(app, "run", example="helixq intake run --config intake.toml")(
    connection.database_only(NO_SERVICE)(_run)
)


@verb(
    app,
    "status",
    intakes.list_intakes,
    example="helixq intake status",
    every_tenant=True,
    refused=lambda page: any(row.state not in HEALTHY for row in page.rows),
)
def _status(page: Page[IntakeRow], *, ask: Runner) -> None:
    if not page.rows:
        ask.demand_tenant()
    show.table(
        (
            "stream", "consumer", "state", "lag", "pending", "oldest", "looked", "delivered",
            "vanished", "letters",
        ),
        [_row(row) for row in page.rows],
        ["" if row.state in HEALTHY else "bold red" for row in page.rows],
        empty="no intakes",
        optional=("delivered", "looked", "vanished"),
    )  # fmt: skip
    for row in page.rows:
        if row.problem is not None:
            show.line(f"{row.stream}/{row.consumer}: {row.problem}")
        for consumer, pending in row.figures.get("pending_by_consumer", {}).items():
            show.line(f"{row.stream}: {pending} pending for {consumer}")
    if ask(lambda operations: list_letters(operations, status="open", limit=1)).rows:
        show.line("there are open dead letters; list them with `helixq letter list`")


def _row(row: IntakeRow) -> tuple[str, ...]:
    figures = row.figures
    oldest, looked = figures.get("oldest_seconds"), figures.get("looked_seconds")
    return (
        row.stream,
        f"{row.group}/{row.consumer}",
        row.state,
        "?" if figures.get("lag") is None else str(figures["lag"]),
        str(figures.get("pending", "?")),
        "" if oldest is None else f"{oldest:.0f} s",
        "" if looked is None else f"{looked:.0f} s ago",
        str(figures["read"]),
        str(figures["vanished"]),
        str(figures["letters"]),
    )
