"""One test's database, and how to connect to it as anybody."""

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
        """For `role`; through pgbouncer when the run asks for it, unless `direct`."""
        sockets = self.server.socket_dir
        # Set-up roles are never pooled: migrations and repair need a session of their own.
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
        """Ask as the superuser (or another role) and close."""
        with self.connect(role) as connection:
            return connection.execute(query, args).fetchall()

    def value(self, query: str, *args: Any, role: str = "helix_bootstrap") -> Any:
        [(value,)] = self.rows(query, *args, role=role)
        return value


@contextmanager
def copy_of(
    template: str, server: Postgres, name: str, pooler: Pooler | None = None
) -> Iterator[Database]:
    """A database like `template`, until the end."""
    with Database(server, "postgres").connect("helix_bootstrap") as connection:
        # Files are copied, not their blocks written to the log: a third of the work where nothing
        # waits for the disk.
        connection.execute(
            f"create database {name} template {template} owner helix_migrator strategy file_copy"
        )
    yield Database(server, name, pooler)
    with Database(server, "postgres").connect("helix_bootstrap") as connection:
        connection.execute(f"drop database {name} with (force)")
