"""Which database or service and which tenant a command means.

What is typed wins over what is set: `--url`, `--dsn` or `--data`, then HELIX_URL, then HELIX_DSN,
then HELIX_DATA, then what a file says (cli/config.py), then ./helix-data. A URL means a service;
its token names the tenant. A directory means the embedded servers: they are started or joined for
as long as the command runs. The tenant of a database is `--tenant`, then HELIX_TENANT, then the
one that the role is bound to, then `default`.
"""

from __future__ import annotations

import inspect
import os
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeGuard

import typer

from helixqueue.cli import config, show
from helixqueue.engine import reads
from helixqueue.errors import NotPermitted, Refused
from helixqueue.identity import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from helixqueue.client.http import HelixClient
    from helixqueue.embedded import Postgres
    from helixqueue.postgres.database import Database

DEFAULT_DATA = Path("helix-data")
DEFAULT_TENANT = "default"  # as the Python clients have it
EVERY_TENANT = "*"  # what an operator, or a role that is bound so, acts for


def _directory(given: str | Path) -> Path:
    """Path("") is the working directory, which nobody means by `--data "$UNSET"`."""
    if not os.fspath(given):
        raise typer.BadParameter("expected a directory, got an empty name")
    return Path(given)


def _reason(given: str) -> str:
    if not given.strip():
        raise typer.BadParameter("expected some words, got none: they are what the record keeps")
    return given


Dsn = Annotated[
    str | None,
    typer.Option("--dsn", metavar="DSN", help="The database, else HELIX_DSN.", show_default=False),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        parser=_directory,
        help="Embedded servers in this directory, else HELIX_DATA, else ./helix-data.",
        show_default=False,
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="A service instead of a database, else HELIX_URL.",
        show_default=False,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        help="For the service; better in HELIX_TOKEN, where no list of processes shows it.",
        show_default=False,
    ),
]
Tenant = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="NAME",
        envvar="HELIX_TENANT",
        show_envvar=False,
        help="The tenant, else HELIX_TENANT, else the only one of this role.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Actor = Annotated[
    str | None,
    typer.Option("--actor", help="Who decides, else the database role.", show_default=False),
]
# Whatever a person decides has one.
Reason = Annotated[
    str,
    typer.Option(
        "--reason", metavar="TEXT", parser=_reason, help="Why, for the record.", show_default=False
    ),
]


class ServiceConnection(NamedTuple):
    """A service that was chosen, and the tenant that was named beside it, if one was."""

    url: str
    token: str
    tenant: str | None


@dataclass(frozen=True)
class Reached:
    """A database or a service: the same calls and reads, and whoever runs them."""

    run: Callable[[Any], Any]
    calls: Any
    reads: Any
    fences: Any
    is_service: bool


# The service of the command that runs; `over_http` notes it, so that commands need not hand it on.
_service: ContextVar[ServiceConnection | None] = ContextVar("service", default=None)


def over_http(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--url` and `--token`, and let `reached` know of them."""

    @wraps(command)
    def asked(*args: Any, url: str | None, token: str | None, **more: Any) -> None:  # noqa: ANN401
        chosen = service(url, token, more.get("dsn"), more.get("data"), more.get("tenant"))
        if chosen is not None and more.get("actor") is not None:
            raise typer.BadParameter(
                "--actor: over HTTP the token's name stands in the record; leave it out"
            )
        with use(chosen):
            command(*args, **more)

    return _with_options(asked, command, [("url", Url), ("token", Token)])


def without_service(why: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For a command that no service can do: say so to whoever names one, before all else."""

    def refuse(given: str | None) -> None:
        if given is not None:
            raise typer.BadParameter(f"{why}; leave --url and --token out")

    def option(name: str) -> Any:  # noqa: ANN401 - an annotation
        hidden = typer.Option(name, hidden=True, is_eager=True, callback=refuse)
        return Annotated[str | None, hidden]

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def asked(*args: Any, url: None, token: None, **more: Any) -> None:  # noqa: ANN401, ARG001
            command(*args, **more)

        more = [("url", option("--url")), ("token", option("--token"))]
        return _with_options(asked, command, more)

    return decorated


def _with_options(
    asked: Callable[..., None], command: Callable[..., None], options: list[tuple[str, Any]]
) -> Callable[..., None]:
    """The signature that Typer reads: the command's, and these options before the last."""
    plain = inspect.signature(command, eval_str=True)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in options
    ]
    own = list(plain.parameters.values())
    asked.__signature__ = plain.replace(  # type: ignore[attr-defined]
        parameters=[*own[:-1], *more, own[-1]]
    )
    asked.__annotations__ = {one.name: one.annotation for one in [*own, *more]}
    return asked


@contextmanager
def reached(dsn: str | None, data: Path | None, *, as_owner: bool = False) -> Iterator[Reached]:
    """The service that was chosen, else a database, as `opened` has it."""
    chosen = _service.get()
    if chosen is not None:
        from helixqueue.transport.http import calls as http_calls  # noqa: PLC0415 - one of the two
        from helixqueue.transport.http import fences as http_fences  # noqa: PLC0415
        from helixqueue.transport.http import reads as http_reads  # noqa: PLC0415

        with client_of(chosen) as client:
            yield Reached(client.run, http_calls, http_reads, http_fences, is_service=True)
        return
    from helixqueue.engine import calls, fences  # noqa: PLC0415 - the other

    with opened(dsn, data, as_owner=as_owner) as database:
        yield Reached(database.run, calls, reads, fences, is_service=False)


@contextmanager
def use(chosen: ServiceConnection | None) -> Iterator[None]:
    """Let `reached` lead there, inside."""
    before = _service.set(chosen)
    try:
        yield
    finally:
        _service.reset(before)


def chosen_service() -> ServiceConnection | None:
    return _service.get()


@contextmanager
def client_of(chosen: ServiceConnection) -> Iterator[HelixClient]:
    """A client of a service. A tenant that was named beside it must be the token's."""
    from helixqueue.client.http import HelixClient  # noqa: PLC0415 - a database needs none
    from helixqueue.transport.http import tokens  # noqa: PLC0415

    with HelixClient(chosen.url, chosen.token) as client:
        if chosen.tenant is not None:
            own = client.run(tokens.own_tenant())
            if own != chosen.tenant:
                raise NotPermitted(
                    f"--tenant or HELIX_TENANT says {chosen.tenant!r}, and the token is of tenant "
                    f"{own!r}; leave it out, or ask with a token of {chosen.tenant!r}"
                )
        yield client


@dataclass(frozen=True)
class CliConnection:
    dsn: str
    owner_dsn: str  # of the role that migrates; the same for a server that others run
    postgres: Postgres | None  # the embedded one


def service(
    url: str | None,
    token: str | None,
    dsn: str | None,
    data: Path | None,
    tenant: str | None = None,
) -> ServiceConnection | None:
    """The service to use; None for a database. What is typed wins."""
    if url is not None and (dsn is not None or data is not None):
        raise typer.BadParameter("give --url, --dsn or --data, one of them")
    if dsn is not None or data is not None:
        return None
    url = url or _set_url()
    if not url:
        return None
    token = token or os.environ.get("HELIX_TOKEN") or config.value("token")
    if not token:
        raise typer.BadParameter(
            "a service asks for a token: expected HELIX_TOKEN or --token, got neither"
        )
    show.progress(f"service: {url}")
    return ServiceConnection(url, token, tenant)


def _set_url() -> str | None:
    """The service that the environment names, or the file where the environment names nothing."""
    url = os.environ.get("HELIX_URL")
    if not url and not os.environ.get("HELIX_DSN") and not os.environ.get("HELIX_DATA"):
        url = config.value("url")
    return url or None


def data_directory(given: Path | None) -> Path:
    """Of the embedded servers."""
    return given or Path(os.environ.get("HELIX_DATA") or config.value("data") or DEFAULT_DATA)


@contextmanager
def target(dsn: str | None, data: Path | None, *, create: bool = False) -> Iterator[CliConnection]:
    """The database to use; says on standard error which one it is.

    `create` allows a new data directory.
    """
    if dsn is not None and data is not None:
        raise typer.BadParameter("give --dsn or --data, not both")
    if dsn is None and data is None:
        dsn = os.environ.get("HELIX_DSN") or None
        if dsn is None and not os.environ.get("HELIX_DATA"):
            dsn = config.value("dsn")
            if dsn is None and config.value("data") is None and _set_url() is not None:
                raise typer.BadParameter(
                    "a service is all that is set (HELIX_URL, or url in the file), and this is "
                    "about the database itself, which no service hands out; name it with --dsn "
                    "or --data"
                )
    if dsn is not None:
        show.progress(f"database: {_without_password(dsn)}")
        yield CliConnection(dsn, dsn, None)
        return
    directory = data_directory(data)
    if not create and not _is_there(directory / "postgres"):
        raise typer.BadParameter(
            f"no database: expected --dsn, HELIX_DSN or embedded servers in {directory}/ and found "
            "none; name one, or create that directory with `helixq migrate`"
        )
    show.progress(f"database: embedded, in {directory.resolve()}")
    from helixqueue.embedded import Servers  # noqa: PLC0415 - not in every installation

    # Only PostgreSQL: these commands have no use for Valkey.
    with Servers(directory).postgres.start(show.progress) as postgres:
        yield CliConnection(postgres.dsn, postgres.migrator_dsn, postgres)


def _is_there(servers: Path) -> bool:
    """Also where this user may not look: what starts them tells whose they are."""
    try:
        return servers.is_dir()
    except PermissionError:
        return True


@contextmanager
def opened(dsn: str | None, data: Path | None, *, as_owner: bool = False) -> Iterator[Database]:
    """A connection to it, of an embedded server as the role that programs use or as its owner."""
    from helixqueue.postgres.database import Database  # noqa: PLC0415 - a service needs no driver

    with (
        target(dsn, data) as found,
        Database.connect(found.owner_dsn if as_owner else found.dsn) as database,
    ):
        yield database


def tenant_to_read(database: Database | Reached, named: str | None) -> str | None:
    """The tenant to look at; None for all that may be seen. A stranger's is refused."""
    if named is None or _by_token(database):  # of a service, `client_of` has looked
        return None
    return _permitted(database, named)


def tenant_to_change(database: Database | Reached, named: str | None) -> str:
    """The one tenant that a change is about, `default` for a role that acts for all of them."""
    if _by_token(database):
        return ""
    if named is not None:
        return _permitted(database, named)
    bound = database.run(reads.tenants())
    if len(bound) != 1:
        raise Refused(
            f"expected a tenant, and this role acts for {', '.join(bound) or 'none'}; "
            "name one with --tenant or HELIX_TENANT"
        )
    tenant = DEFAULT_TENANT if bound == [EVERY_TENANT] else bound[0]
    show.progress(f"tenant: {tenant}")
    return tenant


def tenant_named(database: Database | Reached, named: str | None) -> str:
    """The one tenant that something is about, by name; a service says whose the token is."""
    if _by_token(database):
        from helixqueue.transport.http import tokens  # noqa: PLC0415 - a database needs none

        return str(database.run(tokens.own_tenant()))
    return tenant_to_change(database, named)


def _by_token(database: Database | Reached) -> TypeGuard[Reached]:
    """A service knows the tenant: it is the token's."""
    return isinstance(database, Reached) and database.is_service


def _permitted(database: Database | Reached, named: str) -> str:
    """Row-level security would give a stranger an empty answer; this is a clear one."""
    check_name("tenant", named)
    bound = database.run(reads.tenants())
    if named not in bound and EVERY_TENANT not in bound:
        raise NotPermitted(
            f"this role may not act for tenant {named!r}; it acts for {', '.join(bound) or 'none'}"
        )
    show.progress(f"tenant: {named}")
    return named


def _without_password(dsn: str) -> str:
    """Where it leads, as key=value; the password never reaches a screen or a log."""
    from helixqueue.postgres.database import parse_dsn  # noqa: PLC0415 - a service needs no driver

    try:
        parts = parse_dsn(dsn)
    except Refused as error:
        raise typer.BadParameter(str(error)) from None
    return " ".join(
        f"{name}={parts[name]}" for name in ("host", "port", "dbname", "user") if name in parts
    )
