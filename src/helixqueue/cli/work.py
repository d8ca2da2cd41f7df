"""`helixq work`."""

from __future__ import annotations

import logging
import shlex
import sys
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from helixqueue.cli import connection, show
from helixqueue.cli.command import command
from helixqueue.cli.resources import resources
from helixqueue.client.async_base import AsyncBaseClient
from helixqueue.client.base import BaseClient
from helixqueue.client.run_worker import jobs_of, work
from helixqueue.errors import Refused
from helixqueue.queues import Queue
from helixqueue.transport import operation_log
from helixqueue.worker.handlers import QueueHandler
from helixqueue.worker.program import Program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helixqueue.worker.health import WorkSummary
    from helixqueue.worker.options import WorkOptions


Named = Annotated[
    list[str] | None,
    typer.Argument(metavar="QUEUE...", help="Of --app, all unless said.", show_default=False),
]

App = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE[:CLIENT]",
        help="Where the queues and their handlers are declared, and the client, if any.",
        show_default=False,
    ),
]
Command = Annotated[
    str | None,
    typer.Option(
        "--exec",
        metavar="COMMAND",
        parser=command,
        help="A program that does the work.",
        show_default=False,
    ),
]
Slots = Annotated[int, typer.Option("--slots", min=1, help="Batches at a time.")]
UntilIdle = Annotated[bool, typer.Option("--until-idle", help="End when nothing is left to claim.")]
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", min=0.05, help="Seconds for one attempt of --exec."),
]
Grace = Annotated[
    float, typer.Option("--grace", min=0, help="Seconds for what runs when it is stopped.")
]
Logs = Annotated[
    Path | None,
    typer.Option(
        "--logs", metavar="DIR", help="Keep what --exec prints there.", show_default=False
    ),
]
Free = Annotated[
    str | None,
    typer.Option(
        "--free",
        metavar="JSON",
        help='What each slot has: {"gpus": 1, "labels": {"site": "berlin"}}.',
        show_default=False,
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="The worker's name, for people.")]
Log = Annotated[
    Path | None,
    typer.Option(
        "--log",
        metavar="FILE",
        dir_okay=False,
        help="A line of JSON a batch and call goes there, else to standard error.",
        show_default=False,
    ),
]
LOG_BYTES: Final = 10_000_000


def register(app: typer.Typer) -> None:
    app.command("work")(_work)


def _work(
    queues: Named = None,
    *,
    app: App = None,
    program: Command = None,
    slots: Slots = 4,
    free: Free = None,
    until_idle: UntilIdle = False,
    time_limit: TimeLimit = None,
    grace: Grace = 30.0,
    logs: Logs = None,
    name: Name = None,
    log: Log = None,
    url: connection.Url = None,
    token: connection.Token = None,
    dsn: connection.Dsn = None,
    data: connection.Data = None,
    tenant: connection.Tenant = None,
    as_json: connection.AsJson = False,
) -> None:
    """Do the work of a queue, by Python handlers or any program.

    SIGTERM lets what runs finish within the grace time and gives the rest back; a second one gives
    back at once.
    """
    if (app is None) == (program is None):
        raise typer.BadParameter("give --app MODULE or --exec COMMAND, one of them")
    if program is not None and not queues:
        raise typer.BadParameter("--exec: name the queues whose work the program does")
    _log(log)
    options: WorkOptions = {
        "slots": slots,
        "until_idle": until_idle,
        "grace_seconds": grace,
        "name": name,
        "free": None if free is None else resources("free", free),
    }
    declared, client = _found(app, queues or []) if app is not None else ([], None)
    named = url or dsn or data
    with _client(None if named else client, (url, token), (dsn, data, tenant)) as helix:
        if program is not None:
            run = Program(shlex.split(program), logs).run
            jobs = {one: QueueHandler(one, None, run, time_limit) for one in queues or ()}
        else:
            jobs = jobs_of(helix, declared)
        done = work(helix, jobs, options)
    _tell(done, as_json=as_json)


def _log(file: Path | None) -> None:
    """What a worker says is for people; what became of each batch, for whoever searches."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request
    lines: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        lines = RotatingFileHandler(file, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    lines.setFormatter(logging.Formatter("%(message)s"))
    operation_log.LOG.addHandler(lines)
    operation_log.LOG.propagate = False


def _found(app: str, names: Sequence[str]) -> tuple[list[Queue[Any, Any]], BaseClient | None]:
    """The queues of these names, or all, in a module; and its client, if one was named."""
    module_name, _, client_name = app.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise
        raise Refused(f"--app: expected a module, found none called {module_name!r}") from None
    queues = {
        one.name: one
        for one in vars(module).values()
        if isinstance(one, Queue) and one.handler_function is not None
    }
    missing = [name for name in names if name not in queues]
    if missing or not queues:
        wanted = f" called {', '.join(missing)}" if missing else ""
        raise Refused(
            f"--app: {module_name} has no queue with a handler{wanted}; "
            f"it has {', '.join(sorted(queues)) or 'none'}"
        )
    client = getattr(module, client_name, None) if client_name else None
    if client_name and not isinstance(client, BaseClient | AsyncBaseClient):
        raise Refused(f"--app: expected a HelixQueue in {app}, got {type(client).__name__}")
    if isinstance(client, AsyncBaseClient):
        client = client.twin()
    return [queues[name] for name in names or queues], client


@contextmanager
def _client(
    given: Any,  # noqa: ANN401 - a client of either kind
    service: tuple[str | None, str | None],
    database: tuple[str | None, Path | None, str | None],
) -> Iterator[Any]:
    dsn, data, tenant = database
    if given is not None:
        with given:
            yield given
        return
    reached = connection.service(*service, dsn, data, tenant)
    if reached is not None:
        with connection.client_of(reached) as client:
            yield client
        return
    from helixqueue.client.sync import HelixQueue  # noqa: PLC0415 - a service needs no driver
    from helixqueue.postgres.database import Database  # noqa: PLC0415

    with connection.target(dsn, data) as found:
        with Database.connect(found.dsn) as opened:
            whose = connection.tenant_to_change(opened, tenant)
        with HelixQueue(found.dsn, whose) as helix:
            yield helix


def _tell(done: WorkSummary, *, as_json: bool) -> None:
    if as_json:
        show.as_json(asdict(done))
        return
    show.line(
        f"{done.completed} completed, {done.failed} failed, {done.lost} lost, "
        f"{done.given_back} given back"
    )
