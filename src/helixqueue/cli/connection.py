"""The service or database that a command uses, and the tenant.

Precedence: `--url`, `--dsn` or `--data`; then HELIX_URL, HELIX_DSN, HELIX_DATA; then the
configuration file (cli/config.py); then ./helix-data. A URL selects a service, whose token selects
the tenant. A directory selects embedded servers, which run at least as long as the command. The
tenant of a database is `--tenant`, else HELIX_TENANT, else the only tenant of the login. Without
one, lists show the rows of all tenants of the login, and changes are refused; but an operator of a
database without another tenant changes `default`.
"""

from __future__ import annotations

import inspect
import os
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeGuard

import typer

from helixqueue.cli import config, options, show
from helixqueue.client.backend import backend_of
from helixqueue.engine import reads
from helixqueue.errors import NotPermitted, Refused
from helixqueue.identity import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from helixqueue.client.http import HelixClient
    from helixqueue.embedded import Postgres
    from helixqueue.operations.call_set import CallSet
    from helixqueue.postgres.database import Database

DATABASE_OPTIONS: Final = {"dsn": options.Dsn, "data": options.Data}
DEFAULT_DATA = Path("helix-data")
EVERY_TENANT = "*"  # the binding of an operator
_LAST_NAME: Final = "z" * 63  # sorts after every name of a queue
_NAMED_TENANTS: Final = 5  # in a message


class ServiceTarget(NamedTuple):
    url: str
    token: str
    tenant: str | None  # from --tenant; must be the token's


@dataclass(frozen=True)
class DatabaseTarget:
    dsn: str
    owner_dsn: str  # login of the schema's owner; for an external server the same as `dsn`
    postgres: Postgres | None  # the embedded server


@dataclass(frozen=True)
class Target:
    """A database or a service, for which operations run."""

    run: Callable[[Any], Any]
    call_set: CallSet
    is_service: bool


class Selected(NamedTuple):
    """What the options of a command select: a service, or a database by DSN or directory."""

    service: ServiceTarget | None = None
    dsn: str | None = None
    data: Path | None = None


_selected: ContextVar[Selected] = ContextVar("selected")  # by the running command


def service_or_database(function: Callable[..., None]) -> Callable[..., None]:
    """Add `--dsn`, `--data`, `--url` and `--token` to a command; `open_target` uses them."""

    @wraps(function)
    def wrapper(
        *args: Any,  # noqa: ANN401
        dsn: str | None,
        data: Path | None,
        url: str | None,
        token: str | None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        service = select_service(url, token, dsn, data, kwargs.get("tenant"))
        if service is not None and kwargs.get("actor") is not None:
            raise typer.BadParameter(
                "--actor: a service records the name of the token; remove this option"
            )
        with using(Selected(service, dsn, data)):
            function(*args, **kwargs)

    service_options = {"url": options.Url, "token": options.Token}
    return _add_options(wrapper, function, DATABASE_OPTIONS | service_options)


def database_only(reason: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add `--dsn` and `--data`, for commands that no service can run, with the reason for that."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def wrapper(*args: Any, dsn: str | None, data: Path | None, **kwargs: Any) -> None:  # noqa: ANN401
            with using(Selected(None, dsn, data)):
                function(*args, **kwargs)

        return without_service(reason)(_add_options(wrapper, function, DATABASE_OPTIONS))

    return decorate


def without_service(reason: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Reject `--url` and `--token` with a reason."""

    def reject(value: str | None) -> None:
        if value is not None:
            raise typer.BadParameter(f"{reason}; remove --url and --token")

    def hidden(name: str) -> Any:  # noqa: ANN401 - an annotation
        return Annotated[
            str | None, typer.Option(name, hidden=True, is_eager=True, callback=reject)
        ]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def wrapper(*args: Any, url: None, token: None, **kwargs: Any) -> None:  # noqa: ANN401, ARG001
            function(*args, **kwargs)

        return _add_options(wrapper, function, {"url": hidden("--url"), "token": hidden("--token")})

    return decorate


def _add_options(
    wrapper: Callable[..., None], function: Callable[..., None], added: dict[str, Any]
) -> Callable[..., None]:
    """Give `wrapper` the signature that Typer reads: the function's, with `added` before --json."""
    signature = inspect.signature(function, eval_str=True)
    own = list(signature.parameters.values())
    new = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in added.items()
    ]
    wrapper.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own[:-1], *new, own[-1]]
    )
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *new]}
    return wrapper


@contextmanager
def using(selected: Selected) -> Iterator[None]:
    """Make `open_target` and `open_database` use this service or database."""
    token = _selected.set(selected)
    try:
        yield
    finally:
        _selected.reset(token)


def selected() -> Selected:
    return _selected.get()


def select_service(
    url: str | None,
    token: str | None,
    dsn: str | None,
    data: Path | None,
    tenant: str | None = None,
) -> ServiceTarget | None:
    """The service that options, environment or configuration select; None for a database."""
    if url is not None and (dsn is not None or data is not None):
        raise typer.BadParameter("expected one of --url, --dsn and --data, got several")
    if dsn is not None or data is not None:
        return None
    url = url or _configured_url()
    if not url:
        return None
    token = token or os.environ.get("HELIX_TOKEN") or config.value("token")
    if not token:
        raise typer.BadParameter("a service needs a token: set HELIX_TOKEN or use --token")
    show.progress(f"service: {url}")
    return ServiceTarget(url, token, tenant)


def _configured_url() -> str | None:
    url = os.environ.get("HELIX_URL")
    if not url and not os.environ.get("HELIX_DSN") and not os.environ.get("HELIX_DATA"):
        url = config.value("url")
    return url or None


@contextmanager
def open_target(*, as_owner: bool = False) -> Iterator[Target]:
    """The service or database that the options of the running command select."""
    service = _selected.get().service
    if service is not None:
        from helixqueue.client.http_requests import HTTP_CALLS  # noqa: PLC0415

        with open_client(service) as client:
            yield Target(backend_of(client).run, HTTP_CALLS, is_service=True)
        return
    from helixqueue.engine.call_set import POSTGRES_CALLS  # noqa: PLC0415 - one of the two

    with open_database(as_owner=as_owner) as database:
        yield Target(database.run, POSTGRES_CALLS, is_service=False)


@contextmanager
def open_client(service: ServiceTarget) -> Iterator[HelixClient]:
    """A client of the service; checks that --tenant is the token's tenant."""
    from helixqueue.client.http import HelixClient  # noqa: PLC0415 - not needed for a database

    with HelixClient(service.url, service.token) as client:
        if service.tenant is not None:
            tenant = _own_tenant(backend_of(client).run)
            if tenant != service.tenant:
                raise NotPermitted(
                    f"--tenant or HELIX_TENANT is {service.tenant!r}, but the token belongs to "
                    f"tenant {tenant!r}; remove it, or use a token of {service.tenant!r}"
                )
        yield client


@contextmanager
def open_database(*, as_owner: bool = False) -> Iterator[Database]:
    """A connection to the database, with the run-time login or the schema owner's."""
    from helixqueue.postgres.database import Database  # noqa: PLC0415 - a service needs no driver

    with (
        database_target() as target,
        Database.connect(target.owner_dsn if as_owner else target.dsn) as database,
    ):
        yield database


@contextmanager
def database_target(*, create: bool = False) -> Iterator[DatabaseTarget]:
    """The selected database; starts embedded servers. `create` allows a new data directory."""
    _, dsn, data = _selected.get()
    dsn = _select_dsn(dsn, data)
    if dsn is not None:
        show.progress(f"database: {without_password(dsn)}")
        yield DatabaseTarget(dsn, dsn, None)
        return
    directory = data_directory(data)
    if not create and not _exists(directory / "postgres"):
        raise typer.BadParameter(
            f"no database: expected --dsn, HELIX_DSN or embedded servers in {directory}/, found "
            "none; select a database, or create that directory with `helixq up` or `helixq migrate`"
        )
    show.progress(f"database: embedded, in {directory.resolve()}")
    from helixqueue.embedded import Servers  # noqa: PLC0415 - not in every installation

    # Commands use PostgreSQL only, not Valkey.
    with Servers(directory).postgres.start(show.progress) as postgres:
        yield DatabaseTarget(postgres.dsn, postgres.migrator_dsn, postgres)


def _select_dsn(dsn: str | None, data: Path | None) -> str | None:
    """The DSN of an external database; None for embedded servers."""
    if dsn is not None and data is not None:
        raise typer.BadParameter("expected --dsn or --data, got both")
    if dsn is not None or data is not None:
        return dsn
    if os.environ.get("HELIX_DSN"):
        return os.environ["HELIX_DSN"]
    if os.environ.get("HELIX_DATA"):
        return None
    dsn = config.value("dsn")
    if dsn is None and config.value("data") is None and _configured_url() is not None:
        raise typer.BadParameter(
            "only a service is configured (HELIX_URL, or url in the configuration file), and this "
            "command needs the database itself; select it with --dsn or --data"
        )
    return dsn


def data_directory(data: Path | None) -> Path:
    """The directory of the embedded servers."""
    return data or Path(os.environ.get("HELIX_DATA") or config.value("data") or DEFAULT_DATA)


def _exists(directory: Path) -> bool:
    """True also without permission to look: starting the servers then names the owner."""
    try:
        return directory.is_dir()
    except PermissionError:
        return True


def tenant_to_read(target: Database | Target, tenant: str | None) -> str | None:
    """The tenant whose rows to read; None for every tenant that the login may see."""
    if tenant is None or _is_service(target):  # `open_client` checks the tenant of a service
        return None
    return _check_permitted(target, tenant)


def demand_any_tenant(target: Database | Target) -> None:
    """Raise an error for a login that acts for no tenant of its own, such as that of a service."""
    if not _is_service(target) and not target.run(reads.tenants()):
        raise NotPermitted(
            "expected a login that acts for a tenant; this one acts for none and sees no row: "
            "use the login of an application or an operator"
        )


def tenant_to_change(target: Database | Target, tenant: str | None) -> str:
    """The tenant to change; "" for a service, whose token decides."""
    if _is_service(target):
        return ""
    if tenant is not None:
        return _check_permitted(target, tenant)
    bound = target.run(reads.tenants())
    if bound == [EVERY_TENANT]:
        bound = _tenants_with_queues(target) or [options.DEFAULT_TENANT]
        if bound != [options.DEFAULT_TENANT]:
            raise _no_tenant(f"this login acts for all tenants, such as {', '.join(bound)}")
    if len(bound) != 1:
        raise _no_tenant(f"this login acts for {', '.join(bound) or 'none'}")
    show.progress(f"tenant: {bound[0]}")
    return str(bound[0])


def _no_tenant(why: str) -> Refused:
    return Refused(f"expected a tenant: {why}; choose one with --tenant or HELIX_TENANT")


def _tenants_with_queues(target: Database | Target) -> list[str]:
    """The tenants of the first queues by tenant, which are enough to see whether it is one."""
    found: list[str] = []
    after: str | None = None
    while len(found) < _NAMED_TENANTS:
        page = target.run(reads.queues(bound=0, after=after, limit=1))
        if not page.rows:
            break
        found.append(page.rows[0].tenant)
        after = f"{found[-1]}/{_LAST_NAME}"
    return found


def tenant_to_work_for(database: Database, tenant: str | None, *, every: bool) -> str:
    """The tenant of a worker's client; with `every`, any tenant of the login."""
    if not every:
        return tenant_to_change(database, tenant)
    bound = [name for name in database.run(reads.tenants()) if name != EVERY_TENANT]
    show.progress("tenant: all of this login")
    return bound[0] if bound else options.DEFAULT_TENANT


def tenant_name(target: Database | Target, tenant: str | None) -> str:
    """As `tenant_to_change`, and the name of the token's tenant for a service."""
    if _is_service(target):
        return _own_tenant(target.run)
    return tenant_to_change(target, tenant)


def _own_tenant(run: Callable[[Any], Any]) -> str:
    """The tenant of the token."""
    from helixqueue.operations.tokens import show_token  # noqa: PLC0415 - not for a database
    from helixqueue.transport.http.derived_calls import request_of  # noqa: PLC0415

    return str(run(request_of(show_token, {})).tenant)


def _is_service(target: Database | Target) -> TypeGuard[Target]:
    return isinstance(target, Target) and target.is_service


def _check_permitted(target: Database | Target, tenant: str) -> str:
    """Raise an error where row-level security would return no rows."""
    check_name("tenant", tenant)
    bound = target.run(reads.tenants())
    if tenant not in bound and EVERY_TENANT not in bound:
        raise NotPermitted(
            f"this login may not act for tenant {tenant!r}; it acts for "
            f"{', '.join(bound) or 'none'}"
        )
    show.progress(f"tenant: {tenant}")
    return tenant


def without_password(dsn: str) -> str:
    """The DSN as key=value, for terminals and logs."""
    from helixqueue.postgres.database import parse_dsn  # noqa: PLC0415 - a service needs no driver

    try:
        parts = parse_dsn(dsn)
    except Refused as error:
        raise typer.BadParameter(str(error)) from None
    return " ".join(
        f"{name}={parts[name]}" for name in ("host", "port", "dbname", "user") if name in parts
    )
