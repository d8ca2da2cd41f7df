"""`helixq up`."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from helixqueue.cli import connection, messages, options, show
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit
from helixqueue.demo.sample_sheet import TENANT as DEMO_TENANT
from helixqueue.embedded.account import explain_os_error
from helixqueue.engine import tokens
from helixqueue.errors import Refused, Unavailable
from helixqueue.fence.key_file import find_keys
from helixqueue.identity import check_name
from helixqueue.postgres.database import Database
from helixqueue.service.address import address_of
from helixqueue.service.run import PortTaken, check_database, listener_on, log_to
from helixqueue.service.settings import ServiceSettings
from helixqueue.up import databases
from helixqueue.up.directory_lock import lock_directory
from helixqueue.up.processes import Processes, SupervisedProcess
from helixqueue.up.run import run

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from helixqueue.up.databases import Databases
    from helixqueue.up.directory_lock import DirectoryLock

PORT: Final = 8080
WORKERS: Final = 2
LOG_BYTES: Final = 10_000_000
DEMO: Final = "demo"
# Its own directory: `make run` and programs that use ./helix-data do not meet.
DEMO_DATA: Final = Path("helix-demo")

NO_SERVICE = "up starts a service of its own, on embedded servers or on --dsn"


def _redis(url: str) -> str:
    if urlsplit(url).scheme not in {"redis", "rediss", "unix"}:
        raise typer.BadParameter(f"expected a URL such as redis://host:6379, got {url!r}")
    return url


ServiceDsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        help="Use this PostgreSQL, with the service's login. [env: HELIX_DSN]",
        show_default=False,
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
        show_default=False,
    ),
]
WorkDsn = Annotated[
    str | None,
    typer.Option(
        "--work-dsn",
        metavar="DSN",
        help="Login of the local workers, for use with --dsn.",
        show_default=False,
    ),
]
Redis = Annotated[
    str | None,
    typer.Option(
        "--redis",
        metavar="URL",
        parser=_redis,
        help="Use this Redis or Valkey instead of the embedded one.",
        show_default=False,
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
        show_default=False,
    ),
]
App = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE",
        help="Run local workers with the handlers of this module.",
        show_default=False,
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
        show_default=False,
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
    float | None,
    typer.Option(
        "--for", metavar="SECONDS", min=0, help="Stop after this time.", show_default=False
    ),
]


@dataclass(frozen=True)
class UpOptions:
    """The options of `helixq up` after validation."""

    dsn: str | None
    owner_dsn: str | None
    work_dsn: str | None
    data: Path
    redis: str | None
    host: str
    port: int | None
    app: str | None
    workers: int
    tenant: str
    demo: bool
    seconds: float | None
    as_json: bool


def register(app: typer.Typer) -> None:
    add = command(app, "up", example="helixq up --app mylab.queues --workers 4")
    add(connection.without_service(NO_SERVICE)(_up))


def _up(
    *,
    data: options.Data = None,
    dsn: ServiceDsn = None,
    owner_dsn: OwnerDsn = None,
    work_dsn: WorkDsn = None,
    redis: Redis = None,
    host: Host = "127.0.0.1",
    port: Port = None,
    app: App = None,
    workers: Workers = None,
    tenant: options.Tenant = None,
    demo: Demo = False,
    seconds: Seconds = None,
    as_json: options.AsJson = False,
) -> None:
    """Run databases, service and workers until Ctrl-C.

    Without --dsn, PostgreSQL and Valkey run embedded in the data directory, and a restart finds
    all data again. Exit code 9: another `helixq up` runs in that directory.
    """
    json_log = messages.select_log_mode(by_default=as_json)
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
    if app is not None:
        _require_module(app)
    directory = DEMO_DATA if demo and data is None else connection.data_directory(data)
    up_options = UpOptions(
        dsn=dsn,
        owner_dsn=owner_dsn,
        work_dsn=work_dsn,
        data=directory.resolve(),
        redis=redis,
        host=host,
        port=port,
        app=app,
        workers=WORKERS if workers is None and app is not None else workers or 0,
        tenant=check_name("tenant", tenant or (DEMO_TENANT if demo else options.DEFAULT_TENANT)),
        demo=demo,
        seconds=seconds,
        as_json=as_json or json_log,
    )
    # Until the event loop installs its handlers, SIGTERM acts like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise typer.Exit(_run(up_options))


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


def _run(up_options: UpOptions) -> Exit:
    with ExitStack() as stack:
        lock = None
        if up_options.dsn is None:
            lock = stack.enter_context(lock_directory(up_options.data))
        listener = stack.enter_context(_listener(up_options))
        found = stack.enter_context(_databases(up_options))
        settings = ServiceSettings(found.dsn, keys=find_keys())
        # An unreachable database is reported below, when the login link is created.
        check_database(settings, warn=show.warning, unreachable=lambda _: None)
        _configure_logs(found)
        children = _children(up_options, found)
        if up_options.as_json:
            for child in children:
                child.environment = {**child.environment, **messages.JSON_LOG}
        facts = _facts(up_options, found, address_of(listener))
        asyncio.run(
            run(
                settings,
                listener,
                Processes(children, show.progress),
                ready=lambda: _print_banner(facts, lock, as_json=up_options.as_json),
                stopping=lambda: show.progress("stopping; all data is kept"),
                seconds=up_options.seconds,
            )
        )
    demo_failed = any(child.name == DEMO and child.code not in {0, None} for child in children)
    return Exit.NO if demo_failed else Exit.OK


def _databases(up_options: UpOptions) -> AbstractContextManager[Databases]:
    if up_options.dsn is None:
        show.progress(f"embedded servers in {up_options.data}")
        return databases.embedded(up_options.data, up_options.redis, show.progress)
    return databases.external(
        up_options.dsn,
        redis=up_options.redis,
        owner_dsn=up_options.owner_dsn,
        work_dsn=up_options.work_dsn,
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
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage() + ("" if error is None else f": {error}")
        messages.write(text, record.levelno)


def _listener(up_options: UpOptions) -> socket.socket:
    """A socket on the requested port, else on the default port, else on a free one."""
    if up_options.port is not None:
        return listener_on(up_options.host, up_options.port, show.progress)
    try:
        return listener_on(up_options.host, PORT, show.progress)
    except PortTaken:
        return listener_on(up_options.host, 0, show.progress)


def _children(up_options: UpOptions, found: Databases) -> Sequence[SupervisedProcess]:
    children = []
    if up_options.app is not None and found.work_dsn is not None:
        environment = {"HELIX_DSN": found.work_dsn, "HELIX_TENANT": up_options.tenant}
        for number in range(1, up_options.workers + 1):
            name = f"up-{number}"
            arguments = ["work", "--app", up_options.app, "--name", name, "--grace", "5"]
            if found.data is not None:
                arguments += ["--log", str(found.data / f"{name}.log")]
            children.append(SupervisedProcess(name, "helixqueue.cli.main", arguments, environment))
    if up_options.demo and found.postgres is not None:
        from helixqueue.demo.run import create_effects  # noqa: PLC0415 - only the demo needs it

        create_effects(found.postgres)
        environment = {"HELIX_DSN": found.postgres.dsn}
        children.append(SupervisedProcess(DEMO, "helixqueue.demo.live", environment=environment))
    return children


def _facts(up_options: UpOptions, found: Databases, url: str) -> dict[str, Any]:
    """The contents of the banner, with a new login link."""
    code = tokens.new_token("hl_")
    with Database.connect(found.dsn, tenant=up_options.tenant) as database:
        until = database.run(
            tokens.offer_login(tenant=up_options.tenant, code_hash=code.hash, actor="helixq up")
        )
    return {
        "url": url,
        "login": f"{url}/login?code={code.token}",
        "login_until": until.isoformat(timespec="seconds"),
        "tenant": up_options.tenant,
        "data": None if found.data is None else str(found.data),
        "dsn": _dsn_of_programs(found),
        "redis": None if found.redis is None else _without_password(found.redis),
        "workers": up_options.workers,
        "pid": os.getpid(),
    }


def _dsn_of_programs(found: Databases) -> str | None:
    """The login of workers and programs; the one of an embedded database has no password."""
    if found.work_dsn is None or found.data is not None:
        return found.work_dsn
    return connection.without_password(found.work_dsn)


def _without_password(url: str) -> str:
    """The banner may end up in a log."""
    return re.sub(r"//[^/]*@", "//", url, count=1)


def _print_banner(facts: dict[str, Any], lock: DirectoryLock | None, *, as_json: bool) -> None:
    if lock is not None:
        lock.publish(facts["url"])
    if as_json:
        show.json_line(f"HelixQueue is up at {facts['url']}", **facts)
    else:
        show.line(f"\nHelixQueue is up at {facts['url']}", "bold green")
        show.line(f"Log in as tenant {facts['tenant']}, once and within 15 minutes:")
        # A line of its own, which fits 80 columns and can be copied.
        show.line(facts["login"])
        for name in ("data", "dsn", "redis", "workers"):
            if facts[name]:
                show.line(f"{name}: {facts[name]}")
        show.line("Ctrl-C stops it; all data is kept.\n")
    sys.stdout.flush()
