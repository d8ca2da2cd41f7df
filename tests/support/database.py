"""The database of one test, and connections to it as any role."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helixqueue.embedded import Postgres
    from tests.support.pooler import Pooler


class Database:
    def __init__(self, server: Postgres, name: str, pooler: Pooler | None = None) -> None:
        self.server = server
        self.name = name
        self._pooler = pooler

    def dsn(self, role: str = "pool", *, direct: bool = False) -> str:
        """The DSN for `role`; through pgbouncer with HELIX_TEST_POOLER, unless `direct`."""
        sockets = self.server.socket_dir
        # Set-up roles bypass the pooler: migrations and repair need a session.
        if self._pooler is not None and not direct and not role.startswith("helix_"):
            sockets = self._pooler.socket_dir
        return f"postgresql://{role}@/{self.name}?host={quote(str(sockets), safe='')}"

    def connect(self, role: str = "pool", **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """An autocommit connection; the caller closes it (it is a context manager)."""
        options.setdefault("autocommit", True)
        connection = psycopg.connect(self.dsn(role), **options)
        # Named prepared statements outlive a transaction, a pooled session does not.
        connection.prepare_threshold = None if self._pooler is not None else 5
        return connection

    def rows(self, query: str, *args: Any, role: str = "helix_bootstrap") -> list[tuple[Any, ...]]:
        """Run a query as the superuser or as `role`."""
        with self.connect(role) as connection:
            return connection.execute(query, args).fetchall()

    def value(self, query: str, *args: Any, role: str = "helix_bootstrap") -> Any:
        [(value,)] = self.rows(query, *args, role=role)
        return value


@contextmanager
def copy_of(
    template: str, server: Postgres, name: str, pooler: Pooler | None = None
) -> Iterator[Database]:
    """Create a copy of the database `template`; drop it at the end."""
    with Database(server, "postgres").connect("helix_bootstrap") as connection:
        # file_copy writes no WAL, which takes a third of the time on a server without fsync.
        connection.execute(
            f"create database {name} template {template} owner helix_migrator strategy file_copy"
        )
    try:
        yield Database(server, name, pooler)
    finally:
        with Database(server, "postgres").connect("helix_bootstrap") as connection:
            connection.execute(f"drop database {name} with (force)")
