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

from helixqueue.cli import connection, show
from helixqueue.cli.exits import Exit
from helixqueue.embedded.account import why_not
from helixqueue.engine import tokens
from helixqueue.errors import Refused, Unavailable
from helixqueue.identity import check_name
from helixqueue.postgres.database import Database
from helixqueue.service.address import address_of
from helixqueue.service.run import PortTaken, demand_fit, listener_on, log_to
from helixqueue.service.settings import ServiceSettings
from helixqueue.up import databases
from helixqueue.up.directory_lock import taken
from helixqueue.up.processes import Processes, SupervisedProcess
from helixqueue.up.run import run

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from helixqueue.up.databases import Databases
    from helixqueue.up.directory_lock import DirectoryLock

PORT: Final = 8080
WORKERS: Final = 2
LOG_BYTES: Final = 10_000_000
LAB: Final = "lab"


def _redis(given: str) -> str:
    if urlsplit(given).scheme not in {"redis", "rediss", "unix"}:
        raise typer.BadParameter("expected a URL such as redis://host:6379, got none")
    return given


ServiceDsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        help="A PostgreSQL that you run, as the service's own role, else HELIX_DSN.",
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
        help="The same as its owner: migrate it, and let the role of --dsn serve.",
        show_default=False,
    ),
]
WorkDsn = Annotated[
    str | None,
    typer.Option(
        "--work-dsn",
        metavar="DSN",
        help="The same for local workers, as a role bound to the tenant.",
        show_default=False,
    ),
]
Redis = Annotated[
    str | None,
    typer.Option(
        "--redis",
        metavar="URL",
        parser=_redis,
        help="A Redis or Valkey that you run.",
        show_default=False,
    ),
]
Host = Annotated[str, typer.Option("--host", help="The address to listen on.")]
Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="Else 8080, or any free one."),
]
App = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE",
        help="Queues and their handlers, for local workers.",
        show_default=False,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=0, max=64, help=f"Local workers of --app: {WORKERS}."),
]
Demo = Annotated[
    bool, typer.Option("--demo", help="Keep a lab running, whose workers die and freeze.")
]
Seconds = Annotated[
    float | None,
    typer.Option("--for", metavar="SECONDS", min=0, help="Stop by itself.", show_default=False),
]

WHY = "up runs a service of its own, on embedded servers or on --dsn"


def register(app: typer.Typer) -> None:
    app.command("up")(connection.without_service(WHY)(_up))


@dataclass(frozen=True)
class Wanted:
    """What was asked for on the command line."""

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


def _up(
    *,
    data: connection.Data = None,
    dsn: ServiceDsn = None,
    owner_dsn: OwnerDsn = None,
    work_dsn: WorkDsn = None,
    redis: Redis = None,
    host: Host = "127.0.0.1",
    port: Port = None,
    app: App = None,
    workers: Workers = None,
    tenant: connection.Tenant = None,
    demo: Demo = False,
    seconds: Seconds = None,
    as_json: connection.AsJson = False,
) -> None:
    """Run everything until Ctrl-C: databases, service, workers.

    Without a DSN, PostgreSQL and Valkey run embedded in the data directory, and a restart finds
    everything there. Ends with 9 when another one runs in that directory.
    """
    if dsn is not None and data is not None:
        raise typer.BadParameter("give --dsn or --data, not both")
    if dsn is None and data is None and not demo:
        dsn = os.environ.get("HELIX_DSN") or None
    if dsn is not None and demo:
        raise typer.BadParameter("--demo is a lab on embedded servers; leave --dsn out")
    if workers and app is None:
        raise typer.BadParameter("--workers: name what they do with --app MODULE")
    if workers != 0 and app is not None and dsn is not None and work_dsn is None:
        raise typer.BadParameter("--app with --dsn: give --work-dsn, the login of local workers")
    if app is not None:
        _demand_module(app)
    wanted = Wanted(
        dsn=dsn,
        owner_dsn=owner_dsn,
        work_dsn=work_dsn,
        data=connection.data_directory(data).resolve(),
        redis=redis,
        host=host,
        port=port,
        app=app,
        workers=WORKERS if workers is None and app is not None else workers or 0,
        tenant=check_name("tenant", tenant or (LAB if demo else connection.DEFAULT_TENANT)),
        demo=demo,
        seconds=seconds,
        as_json=as_json,
    )
    # Until the event loop has its own way, SIGTERM ends this as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise typer.Exit(_run(wanted))


def _demand_module(app: str) -> None:
    """Found, but not loaded: that is the workers' business. They would fail again and again."""
    module = app.partition(":")[0]
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise Refused(f"--app: expected a module, found none called {module!r}")


def _run(wanted: Wanted) -> Exit:
    with ExitStack() as stack:
        place = stack.enter_context(taken(wanted.data)) if wanted.dsn is None else None
        listener = stack.enter_context(_listener(wanted))
        found = stack.enter_context(_home(wanted))
        settings = ServiceSettings(found.dsn)
        # Of a database that is away, the making of the link says more.
        demand_fit(settings, warn=show.progress, away=lambda _: None)
        _log(found)
        children = _children(wanted, found)
        facts = _facts(wanted, found, address_of(listener))
        asyncio.run(
            run(
                settings,
                listener,
                Processes(children, show.progress),
                ready=lambda: _tell(facts, place, as_json=wanted.as_json),
                stopping=lambda: show.progress("stopping; everything is kept"),
                seconds=wanted.seconds,
            )
        )
    lab_failed = any(child.name == LAB and child.code not in {0, None} for child in children)
    return Exit.NO if lab_failed else Exit.OK


def _home(wanted: Wanted) -> Any:  # noqa: ANN401 - a context manager of either kind
    if wanted.dsn is None:
        show.progress(f"embedded servers in {wanted.data}")
        return databases.embedded(wanted.data, wanted.redis, show.progress)
    return databases.given(
        wanted.dsn,
        redis=wanted.redis,
        owner_dsn=wanted.owner_dsn,
        work_dsn=wanted.work_dsn,
        say=show.progress,
    )


def _log(found: Databases) -> None:
    """A line a request would bury the words for people; beside the data it can be read later."""
    if found.data is None:
        log_to(logging.StreamHandler(sys.stderr))
        return
    file = found.data / "service.log"
    try:
        log_to(RotatingFileHandler(file, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8"))
    except OSError as error:
        raise Unavailable(
            f"expected a log that this user can write, got {file}: {why_not(file, error)}; "
            "move it away, or name another directory with --data"
        ) from error
    logging.getLogger("helixqueue.embedded").addHandler(_Screen(logging.WARNING))


class _Screen(logging.Handler):
    """That a server died, and is back, is for whoever looks; where it is not back, also why."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        show.progress(record.getMessage() + ("" if error is None else f": {error}"))


def _listener(wanted: Wanted) -> socket.socket:
    """The port that was named; else the usual one, or any that is free."""
    if wanted.port is not None:
        return listener_on(wanted.host, wanted.port, show.progress)
    try:
        return listener_on(wanted.host, PORT, show.progress)
    except PortTaken:
        return listener_on(wanted.host, 0, show.progress)


def _children(wanted: Wanted, found: Databases) -> Sequence[SupervisedProcess]:
    children = []
    if wanted.app is not None and found.work_dsn is not None:
        environment = {"HELIX_DSN": found.work_dsn, "HELIX_TENANT": wanted.tenant}
        for number in range(1, wanted.workers + 1):
            name = f"up-{number}"
            arguments = ["work", "--app", wanted.app, "--name", name, "--grace", "5"]
            if found.data is not None:
                arguments += ["--log", str(found.data / f"{name}.log")]
            children.append(SupervisedProcess(name, "helixqueue.cli.main", arguments, environment))
    if wanted.demo and found.postgres is not None:
        from helixqueue.demo.run import create_effects  # noqa: PLC0415 - most runs have no lab

        create_effects(found.postgres)
        environment = {"HELIX_DSN": found.postgres.dsn}
        children.append(SupervisedProcess(LAB, "helixqueue.demo.live", environment=environment))
    return children


def _facts(wanted: Wanted, found: Databases, url: str) -> dict[str, Any]:
    """What the banner tells; the link is made here and is good once."""
    code = tokens.new_token("hl_")
    with Database.connect(found.dsn, tenant=wanted.tenant) as database:
        until = database.run(
            tokens.offer_login(tenant=wanted.tenant, code_hash=code.hash, actor="helixq up")
        )
    return {
        "url": url,
        "login": f"{url}/login?code={code.token}",
        "login_until": until.isoformat(timespec="seconds"),
        "tenant": wanted.tenant,
        "data": None if found.data is None else str(found.data),
        "redis": None if found.redis is None else _without_password(found.redis),
        "workers": wanted.workers,
        "pid": os.getpid(),
    }


def _without_password(url: str) -> str:
    """A banner is on a screen, and in the log of whoever starts this."""
    return re.sub(r"//[^/]*@", "//", url, count=1)


def _tell(facts: dict[str, Any], place: DirectoryLock | None, *, as_json: bool) -> None:
    if place is not None:
        place.tell(facts["url"])
    if as_json:
        show.as_json(facts)
    else:
        show.line(f"\nHelixQueue is up at {facts['url']}", "bold green")
        show.line(f"  log in    {facts['login']}")
        show.line(f"            (tenant {facts['tenant']}; once, within 15 minutes)")
        if facts["data"] is not None:
            show.line(f"  data      {facts['data']}")
        if facts["redis"] is not None:
            show.line(f"  redis     {facts['redis']}")
        if facts["workers"]:
            show.line(f"  workers   {facts['workers']}")
        show.line("Ctrl-C stops it; everything is kept.\n")
    sys.stdout.flush()
