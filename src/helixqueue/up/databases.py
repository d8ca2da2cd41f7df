"""The databases behind a service: embedded in a directory, or servers that others run."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from helixqueue.client.embedded_setup import set_up
from helixqueue.embedded import Servers
from helixqueue.engine.migrate import LOCK, migrate
from helixqueue.errors import Refused
from helixqueue.postgres.database import parse_dsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from helixqueue.embedded import Postgres


@dataclass(frozen=True)
class Databases:
    dsn: str = field(repr=False)  # of the service's login, bound by setting alone
    redis: str | None
    work_dsn: str | None = field(repr=False)  # of local workers
    data: Path | None  # where the embedded servers are
    postgres: Postgres | None  # the embedded one


@contextmanager
def embedded(directory: Path, redis: str | None, say: Callable[[str], None]) -> Iterator[Databases]:
    """Servers in `directory`: created, started or joined, migrated, and left at the end."""
    servers = Servers(directory)
    with ExitStack() as stack:
        postgres = stack.enter_context(servers.postgres.start(say))
        if redis is None:
            redis = stack.enter_context(servers.valkey.start(say)).url
        set_up(postgres)
        admit(postgres.migrator_dsn, _role(postgres.service_dsn), create=True)
        yield Databases(postgres.service_dsn, redis, postgres.dsn, directory, postgres)


@contextmanager
def given(
    dsn: str,
    *,
    redis: str | None,
    owner_dsn: str | None,
    work_dsn: str | None,
    say: Callable[[str], None],
) -> Iterator[Databases]:
    """A server that others run; with its owner's DSN it is migrated and the login let in."""
    if owner_dsn is not None:
        migrate(owner_dsn, report=say)
        admit(owner_dsn, _role(dsn))
    yield Databases(dsn, redis, work_dsn, None, None)


def admit(owner_dsn: str, role: str, *, create: bool = False) -> None:
    """Let a login serve: it may call the engine, for the tenant that each transaction names."""
    name = sql.Identifier(role)
    with psycopg.connect(owner_dsn) as connection:
        # Two that grant at once would fail with "tuple concurrently updated".
        connection.execute("select pg_advisory_xact_lock(%s)", (LOCK,))
        known = connection.execute("select from pg_roles where rolname = %s", (role,)).fetchone()
        if known is None and create:
            connection.execute(sql.SQL("create role {} login").format(name))
        bound = connection.execute(
            "select from helix.role_tenant where role = %s", (role,)
        ).fetchone()
        if bound is None:
            connection.execute(sql.SQL("grant helix_client to {}").format(name))
            connection.execute("select helix.bind_v1(%s, '*', true)", (role,))


def _role(dsn: str) -> str:
    role = parse_dsn(dsn).get("user")
    if not role:
        raise Refused("expected a DSN that names its user, got one without: it is let in by name")
    return str(role)
