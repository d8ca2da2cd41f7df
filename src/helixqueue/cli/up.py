"""`helixq up`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from helixqueue.cli import connection, options, show, up_banner, up_options
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit
from helixqueue.cli.up_options import UpOptions
from helixqueue.demo.sample_sheet import TENANT as DEMO_TENANT
from helixqueue.embedded.account import explain_os_error
from helixqueue.errors import Refused, Unavailable
from helixqueue.fence.key_file import find_keys
from helixqueue.identity import check_name
from helixqueue.log import terminal
from helixqueue.service.address import address_of
from helixqueue.service.run import PortTaken, check_database, listener_on, log_to
from helixqueue.service.settings import ServiceSettings
from helixqueue.up import databases
from helixqueue.up.directory_lock import lock_directory
from helixqueue.up.intake import (
    default_settings,
    file_settings,
    grant_intake,
    intake_process,
)
from helixqueue.up.processes import Processes, SupervisedProcess
from helixqueue.up.run import run

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from helixqueue.intake.settings import IntakeSettings
    from helixqueue.up.databases import Databases

LOG_BYTES: Final = 10_000_000
DEMO: Final = "demo"
WORKER: Final = "up-"

NO_SERVICE = "up starts a service of its own, on embedded servers or on --dsn"


def register(app: typer.Typer) -> None:
    add = command(app, "up", example="helixq up --app mylab.queues --workers 4")
    add(connection.without_service(NO_SERVICE)(_up))


def _up(
    *,
    data: options.Data = None,
    dsn: up_options.ServiceDsn = None,
    owner_dsn: up_options.OwnerDsn = None,
    work_dsn: up_options.WorkDsn = None,
    redis: up_options.Redis = None,
    intake: up_options.IntakeFile = None,
    no_intake: up_options.NoIntake = False,
    intake_dsn: up_options.IntakeDsn = None,
    host: up_options.Host = "127.0.0.1",
    port: up_options.Port = None,
    app: up_options.App = None,
    workers: up_options.Workers = None,
    tenant: up_options.Tenant = None,
    demo: up_options.Demo = False,
    seconds: up_options.Seconds = None,
    open_browser: up_options.Open = False,
    as_json: options.AsJson = False,
) -> None:
    """Run databases, service, stream intake and workers until Ctrl-C.

    Without --dsn, PostgreSQL and Valkey run embedded in the data directory, and a restart finds
    all data again. Exit code 9: another `helixq up` runs in that directory.
    """
    json_log = terminal.select_log_mode(by_default=as_json)
    if dsn is not None and data is not None:
        raise typer.BadParameter("expected --dsn or --data, got both")
    if dsn is None and data is None and not demo:
        dsn = os.environ.get("HELIX_DSN") or None
    if dsn is not None and demo:
        raise typer.BadParameter("--demo runs on embedded servers only; remove --dsn")
    if workers and app is None:
        raise typer.BadParameter("--workers: expected --app MODULE with their handlers")
    if workers != 0 and app is not None and dsn is not None and work_dsn is None:
        raise typer.BadParameter(
            "--app with --dsn: expected --work-dsn with the login of the local workers"
        )
    if intake is not None:
        _check_intake(no_intake=no_intake, needs_login=dsn is not None and intake_dsn is None)
        file_settings(intake, redis, tenant or options.DEFAULT_TENANT)  # fail early
    if app is not None:
        _require_module(app)
    directory = up_options.DEMO_DATA if demo and data is None else connection.data_directory(data)
    invocation = UpOptions(
        dsn=dsn,
        owner_dsn=owner_dsn,
        work_dsn=work_dsn,
        data=directory.resolve(),
        redis=redis,
        intake=intake,
        no_intake=no_intake,
        intake_dsn=intake_dsn,
        host=host,
        port=port,
        app=app,
        workers=up_options.WORKERS if workers is None and app is not None else workers or 0,
        tenant=check_name("tenant", tenant or (DEMO_TENANT if demo else options.DEFAULT_TENANT)),
        demo=demo,
        seconds=seconds,
        open=open_browser,
        as_json=as_json or json_log,
    )
    # Until the event loop installs its handlers, SIGTERM acts like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise typer.Exit(_run(invocation))


def _check_intake(*, no_intake: bool, needs_login: bool) -> None:
    if no_intake:
        raise typer.BadParameter("expected --intake or --no-intake, got both")
    if needs_login:
        raise typer.BadParameter(
            "--intake with --dsn: expected --intake-dsn with the login of the intake"
        )


def _require_module(app: str) -> None:
    """Fail early: workers with a missing module would be restarted again and again."""
    module = app.partition(":")[0]
    sys.path.insert(0, str(Path.cwd()))
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise Refused(f"--app: expected the name of a module, got {module!r}, which does not exist")


def _run(invocation: UpOptions) -> Exit:
    with ExitStack() as stack:
        lock = None
        if invocation.dsn is None:
            lock = stack.enter_context(lock_directory(invocation.data))
        listener = stack.enter_context(_listener(invocation))
        found = stack.enter_context(_databases(invocation))
        settings = ServiceSettings(found.dsn, keys=find_keys())
        # An unreachable database is reported below, when the login link is created.
        check_database(settings, warn=show.warning, unreachable=lambda _: None)
        _configure_logs(found)
        intake = _intake(invocation, found)
        if intake is not None:
            settings = replace(settings, redis=intake.redis)
        children = _children(invocation, found, intake)
        if not invocation.as_json and sys.stdout.isatty() and sys.stderr.isatty():
            stack.enter_context(_printing_lines_of(children))
        if invocation.as_json:
            for child in children:
                child.environment = {**child.environment, **terminal.JSON_LOG}
        facts = up_banner.facts_of(invocation, found, address_of(listener), intake)
        asyncio.run(
            run(
                settings,
                listener,
                Processes(children, show.progress),
                ready=lambda: up_banner.print_banner(
                    facts, lock, as_json=invocation.as_json, opens=invocation.open
                ),
                stopping=lambda: show.progress("stopping; all data is kept"),
                seconds=invocation.seconds,
            )
        )
    demo_failed = any(child.name == DEMO and child.code not in {0, None} for child in children)
    return Exit.NO if demo_failed else Exit.OK


@contextmanager
def _printing_lines_of(children: Sequence[SupervisedProcess]) -> Iterator[None]:
    """Print a line per batch that one of several workers finished, and the sum of their counts."""
    workers = [child for child in children if child.name.startswith(WORKER)]
    with closing(terminal.TerminalLog()) as log:
        for worker in workers:
            worker.output = partial(log.relay, worker.name)
            worker.environment = {**worker.environment, **terminal.RELAY_LOG}
        yield
    if summary := log.summary():
        show.progress(f"all workers: {summary}")


def _databases(invocation: UpOptions) -> AbstractContextManager[Databases]:
    if invocation.dsn is None:
        show.progress(f"embedded servers in {invocation.data}")
        return databases.embedded(invocation.data, invocation.redis, show.progress)
    return databases.external(
        invocation.dsn,
        redis=invocation.redis,
        owner_dsn=invocation.owner_dsn,
        work_dsn=invocation.work_dsn,
        progress=show.progress,
    )


def _configure_logs(found: Databases) -> None:
    """Log requests to a file in the data directory, and server restarts to the terminal."""
    if found.data is None:
        log_to(logging.StreamHandler(sys.stderr))
        return
    file = found.data / "service.log"
    try:
        log_to(RotatingFileHandler(file, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8"))
    except OSError as error:
        raise Unavailable(
            f"expected a log file that this user can write, got {file}: "
            f"{explain_os_error(file, error)}; move it away, or choose another directory with "
            "--data"
        ) from error
    logging.getLogger("helixqueue.embedded").addHandler(_ProgressHandler(logging.WARNING))


class _ProgressHandler(logging.Handler):
    """Prints log records without a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        terminal.write(terminal.text_of(record), record.levelno)


def _listener(invocation: UpOptions) -> socket.socket:
    """A socket on the requested port, else on the default port, else on a free one."""
    if invocation.port is not None:
        return listener_on(invocation.host, invocation.port, show.progress)
    try:
        return listener_on(invocation.host, up_options.PORT, show.progress)
    except PortTaken:
        return listener_on(invocation.host, 0, show.progress)


def _intake(invocation: UpOptions, found: Databases) -> IntakeSettings | None:
    """Settings of the intake. By default it reads the embedded Valkey, never another server."""
    if invocation.intake is not None:
        return file_settings(invocation.intake, invocation.redis, invocation.tenant, found.redis)
    if (
        invocation.no_intake
        or found.data is None
        or found.redis is None
        or invocation.redis is not None
    ):
        return None
    if find_spec("redis") is None:
        show.progress("no stream intake: it needs `pip install 'helixqueue[intake]'`")
        return None
    return default_settings(
        found.redis,
        invocation.tenant,
        await_queues=invocation.app is not None,
        trim=invocation.demo,  # so that a demo that runs for days stays small
    )


def _intake_login(invocation: UpOptions, found: Databases, tenant: str) -> str:
    """The DSN of the intake's login, which may do nothing else."""
    postgres = found.postgres
    dsn = str(invocation.intake_dsn) if postgres is None else postgres.intake_dsn
    owner = invocation.owner_dsn if postgres is None else postgres.migrator_dsn
    if owner is not None:
        grant_intake(owner, databases.role_of(dsn), tenant, create=postgres is not None)
    return dsn


def _children(
    invocation: UpOptions, found: Databases, intake: IntakeSettings | None
) -> Sequence[SupervisedProcess]:
    children = []
    if intake is not None:
        login = _intake_login(invocation, found, intake.tenant)
        children.append(intake_process(intake, login, found.data))
    if invocation.app is not None and found.work_dsn is not None:
        environment = {"HELIX_DSN": found.work_dsn, "HELIX_TENANT": invocation.tenant}
        for number in range(1, invocation.workers + 1):
            name = f"{WORKER}{number}"
            arguments = ["work", "--app", invocation.app, "--name", name, "--grace", "5"]
            if invocation.as_json:
                arguments.append("--json")  # their output is part of ours
            if found.data is not None:
                arguments += ["--log", str(found.data / f"{name}.log")]
            children.append(SupervisedProcess(name, "helixqueue.cli.main", arguments, environment))
    if invocation.demo and found.postgres is not None:
        from helixqueue.demo.run import create_effects  # noqa: PLC0415 - only the demo needs it

        create_effects(found.postgres)
        environment = {"HELIX_DSN": found.postgres.dsn}
        if intake is not None:
            environment |= {"HELIX_DEMO_REDIS": intake.redis, "HELIX_DEMO_STREAM": intake.stream}
        children.append(SupervisedProcess(DEMO, "helixqueue.demo.live", environment=environment))
    return children
