"""`helixq work`."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from helixqueue.cli import connection, options, show
from helixqueue.cli.command import command
from helixqueue.cli.options import argument, option
from helixqueue.client.async_client import AsyncClient
from helixqueue.client.backend import backend_of
from helixqueue.client.run_worker import handlers_of, work
from helixqueue.client.sync_client import SyncClient
from helixqueue.errors import NotInstalled, Refused
from helixqueue.log.terminal import logging_to
from helixqueue.queues import Queue
from helixqueue.worker.handlers import QueueHandler
from helixqueue.worker.program import Program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helixqueue.worker.health import WorkSummary
    from helixqueue.worker.options import WorkOptions

Names = Annotated[
    list[str] | None, argument("QUEUE", "Queues to work on; all of --app by default.")
]
App = Annotated[
    str | None,
    option(
        "--app MODULE[:CLIENT]",
        "Module that declares queues with handlers, and optionally a client.",
    ),
]
Exec = Annotated[
    str | None,
    option("--exec COMMAND", "Program to run for each batch.", parser=options.shell_command),
]
Runs = Annotated[
    bool, option("--runs", "Execute the commands of runs; of the queue `runs` by default.")
]
SecretsFile = Annotated[
    Path | None,
    option("--secrets FILE", "Secrets for --runs: YAML that only this user reads."),
]
Slots = Annotated[int, option("--slots N", "Number of concurrent batches.", min=1)]
UntilIdle = Annotated[bool, option("--until-idle", "Exit when no batch is left to claim.")]
TimeLimit = Annotated[
    float | None, option("--time-limit SECONDS", "Maximum time of one attempt of --exec.", min=0.05)
]
Grace = Annotated[
    float, option("--grace SECONDS", "Time for running batches to finish after SIGTERM.", min=0)
]
Logs = Annotated[Path | None, option("--logs DIR", "Keep the output of --exec in this directory.")]
Free = Annotated[
    str | None,
    option(
        "--free JSON", 'Resources of each slot, such as {"gpus": 1, "labels": {"site": "berlin"}}.'
    ),
]
Gpus = Annotated[
    str | None,
    option("--gpus LIST", "GPUs that the workers of this host share: all, 0,1 or UUIDs."),
]
Pool = Annotated[
    Path | None,
    option("--pool FILE", "JSON file that describes what the workers of this host share."),
]
Name = Annotated[str | None, option("--name NAME", "Name of the worker.")]
AllTenants = Annotated[
    bool, option("--all-tenants", "Serve every tenant of the login, not only one.")
]
MetricsPort = Annotated[
    int | None,
    option(
        "--metrics-port PORT",
        "Serve metrics for Prometheus on this port; 0 for any free port.",
        min=0,
        max=65_535,
    ),
]
MetricsHost = Annotated[
    str,
    option("--metrics-host ADDRESS", "Address of the metrics endpoint, which asks for no token."),
]
Log = Annotated[
    Path | None,
    option(
        "--log FILE",
        "Write the operation log (JSON lines) to this file instead of standard error.",
        dir_okay=False,
    ),
]


def register(app: typer.Typer) -> None:
    command(app, "work", example='helixq work basecall --exec "./basecall.sh" --slots 2')(_work)


def _work(
    queues: Names = None,
    *,
    app: App = None,
    program: Exec = None,
    runs: Runs = False,
    secrets: SecretsFile = None,
    slots: Slots = 4,
    free: Free = None,
    gpus: Gpus = None,
    pool: Pool = None,
    until_idle: UntilIdle = False,
    time_limit: TimeLimit = None,
    grace: Grace = 30.0,
    logs: Logs = None,
    name: Name = None,
    log: Log = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    url: options.Url = None,
    token: options.Token = None,
    dsn: options.Dsn = None,
    data: options.Data = None,
    tenant: options.Tenant = None,
    all_tenants: AllTenants = False,
    as_json: options.AsJson = False,
) -> None:
    """Process batches with Python handlers or any program.

    With --runs it executes the commands of runs. On SIGTERM, running batches may finish within
    --grace; the others return to their queue without losing an attempt. A second SIGTERM returns
    all of them at once.
    """
    if [app is not None, program is not None, runs].count(True) != 1:
        raise typer.BadParameter("expected one of --app MODULE, --exec COMMAND and --runs")
    if secrets is not None and not runs:
        raise typer.BadParameter("--secrets: expected --runs beside it")
    if program is not None and not queues:
        raise typer.BadParameter("--exec: expected the names of the queues to work on")
    arguments = None if program is None else _program_arguments(program)
    work_options: WorkOptions = {
        "slots": slots,
        "until_idle": until_idle,
        "grace_seconds": grace,
        "name": name,
        "all_tenants": all_tenants,
        "metrics_port": metrics_port,
        "metrics_host": metrics_host,
        "free": None if free is None else options.parse_resources("free", free),
        "gpus": gpus,
        "pool": pool,
    }
    declared, client = ([], None) if app is None else _load_app(app, queues or [])
    client = None if url or dsn or data else client
    if all_tenants and tenant is not None:
        raise typer.BadParameter("expected --tenant or --all-tenants, got both")
    with (
        logging_to(log),
        _open_client(client, (url, token), (dsn, data, tenant), every_tenant=all_tenants) as helix,
    ):
        if runs:
            jobs = _run_handlers(helix, queues, secrets, logs, work_options)
        elif arguments is not None:
            jobs = _program_handlers(Program(arguments, logs), queues or (), time_limit)
        else:
            jobs = handlers_of(helix, declared)
        summary = work(helix, jobs, work_options)
    _show_summary(summary, as_json=as_json)


def _program_handlers(
    program: Program, queues: Sequence[str], time_limit: float | None
) -> dict[str, QueueHandler]:
    return {queue: QueueHandler(queue, None, program.run, time_limit) for queue in queues}


def _run_handlers(
    helix: Any,  # noqa: ANN401 - a client of a database or a service
    queues: Names,
    secrets: Path | None,
    logs: Path | None,
    options: WorkOptions,
) -> dict[str, QueueHandler]:
    """Handlers that execute runs; `options` get what this machine can offer them."""
    try:
        from helixqueue.runs.spec import DEFAULT_QUEUE  # noqa: PLC0415 - of an extra
        from helixqueue.worker.run_program import RunProgram, offered  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise NotInstalled(error.name, "runs") from error

    def read_text(run: int) -> tuple[str, str]:
        text = helix.run_text(str(run))
        return text.name, text.spec

    program = RunProgram(read_text, secrets, logs)
    is_pool = options["gpus"] is not None or options["pool"] is not None
    options["free"] = offered(options["free"], 1 if is_pool else options["slots"])
    return {queue: QueueHandler(queue, None, program.run) for queue in queues or [DEFAULT_QUEUE]}


def _program_arguments(program: str) -> list[str]:
    """Split --exec and check the program: else every batch would fail for a wrong path."""
    arguments = shlex.split(program)
    if shutil.which(arguments[0]) is None:
        file = Path(arguments[0])
        remedy = ""
        if file.is_file():
            is_executable = os.access(file, os.X_OK)
            remedy = f"; write ./{file}" if is_executable else f"; run `chmod +x {file}`"
        raise typer.BadParameter(
            f"--exec: expected an executable program, got {arguments[0]!a}, which is not a file "
            f"that this user can run and not in the PATH{remedy}"
        )
    return arguments


def _load_app(
    app: str, names: Sequence[str]
) -> tuple[list[Queue[Any, Any]], SyncClient[Any] | None]:
    """The queues of a module, all or those of `names`, and its client, if `app` names one."""
    module_name, _, client_name = app.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise
        raise Refused(
            f"--app: expected the name of a module, got {module_name!r}, which does not exist"
        ) from None
    queues = {
        value.name: value
        for value in vars(module).values()
        if isinstance(value, Queue) and value.handler_function is not None
    }
    missing = [name for name in names if name not in queues]
    if missing or not queues:
        wanted = f" named {', '.join(missing)}" if missing else ""
        raise Refused(
            f"--app: expected a queue with a handler{wanted} in {module_name}; "
            f"it has {', '.join(sorted(queues)) or 'none'}"
        )
    client = getattr(module, client_name, None) if client_name else None
    if client_name and not isinstance(client, SyncClient | AsyncClient):
        raise Refused(f"--app: expected a HelixQueue in {app}, got {type(client).__name__}")
    if isinstance(client, AsyncClient):
        client = backend_of(client).sync_client()
    return [queues[name] for name in names or queues], client


@contextmanager
def _open_client(
    client: Any,  # noqa: ANN401 - a client of a database or a service
    service_options: tuple[str | None, str | None],
    database_options: tuple[str | None, Path | None, str | None],
    *,
    every_tenant: bool,
) -> Iterator[Any]:
    """The client of --app, else one of the selected service or database."""
    dsn, data, tenant = database_options
    if client is not None:
        with client:
            yield client
        return
    service = connection.select_service(*service_options, dsn, data, tenant)
    if service is not None:
        with connection.open_client(service) as http_client:
            yield http_client
        return
    from helixqueue.client.sync import HelixQueue  # noqa: PLC0415 - a service needs no driver
    from helixqueue.postgres.database import Database  # noqa: PLC0415

    selected = connection.Selected(None, dsn, data)
    with connection.using(selected), connection.database_target() as target:
        with Database.connect(target.dsn) as database:
            owner = connection.tenant_to_work_for(database, tenant, every=every_tenant)
        with HelixQueue(target.dsn, owner) as helix:
            yield helix


def _show_summary(summary: WorkSummary, *, as_json: bool) -> None:
    if as_json:
        show.json_line(_summary_text(summary), **asdict(summary))
    else:
        show.line(_summary_text(summary))


def _summary_text(summary: WorkSummary) -> str:
    return (
        f"{summary.completed} completed, {summary.failed} failed, {summary.lost} lost, "
        f"{summary.released} released"
    )
