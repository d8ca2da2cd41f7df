"""The databases behind a service: embedded in a data directory, or external servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from helixqueue.client.embedded_setup import set_up
from helixqueue.embedded import Servers
from helixqueue.engine.migrate import LOCK, migrate
from helixqueue.engine.tokens import SERVICE_ROLES
from helixqueue.errors import Refused
from helixqueue.postgres.database import parse_dsn

if TYPE_CHECKING:
    from helixqueue.embedded import Postgres


@dataclass(frozen=True)
class Databases:
    dsn: str = field(repr=False)  # the service's login, which names a tenant in each transaction
    redis: str | None
    work_dsn: str | None = field(repr=False)  # the login of local workers
    data: Path | None  # directory of the embedded servers
    postgres: Postgres | None


@contextmanager
def embedded(
    directory: Path, redis: str | None, progress: Callable[[str], None]
) -> Iterator[Databases]:
    """Create, start or join the servers in `directory` and migrate the database."""
    servers = Servers(directory)
    with ExitStack() as stack:
        postgres = stack.enter_context(servers.postgres.start(progress))
        if redis is None:
            redis = stack.enter_context(servers.valkey.start(progress)).url
        set_up(postgres)
        grant_service(postgres.migrator_dsn, role_of(postgres.service_dsn), create=True)
        yield Databases(postgres.service_dsn, redis, postgres.dsn, directory, postgres)


@contextmanager
def external(
    dsn: str,
    *,
    redis: str | None,
    owner_dsn: str | None,
    work_dsn: str | None,
    progress: Callable[[str], None],
) -> Iterator[Databases]:
    """Use an existing server; with the owner's DSN, migrate it and grant the login its role."""
    if owner_dsn is not None:
        migrate(owner_dsn, report=progress)
        grant_service(owner_dsn, role_of(dsn))
    yield Databases(dsn, redis, work_dsn, None, None)


def grant_service(owner_dsn: str, role: str, *, create: bool = False) -> None:
    """Allow a login to run the service for the tenant that each transaction names."""
    name = sql.Identifier(role)
    with psycopg.connect(owner_dsn) as connection:
        # Concurrent grants fail with "tuple concurrently updated".
        connection.execute("select pg_advisory_xact_lock(%s)", (LOCK,))
        known = connection.execute("select from pg_roles where rolname = %s", (role,)).fetchone()
        if known is None and create:
            connection.execute(sql.SQL("create role {} login").format(name))
        # Each time: a newer release may have added a role.
        roles = sql.SQL(", ").join(map(sql.Identifier, SERVICE_ROLES))
        connection.execute(sql.SQL("grant {} to {}").format(roles, name))
        bound = connection.execute(
            "select from helix.role_tenant where role = %s", (role,)
        ).fetchone()
        if bound is None:
            connection.execute("select helix.bind_v1(%s, '*', true)", (role,))


def role_of(dsn: str) -> str:
    """The user name of a DSN."""
    role = parse_dsn(dsn).get("user")
    if not role:
        raise Refused("expected a DSN with a user name, got one without; add user=... to the DSN")
    return str(role)
