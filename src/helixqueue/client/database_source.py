"""Where the database is: a server with a DSN, or embedded servers in a directory.

A source belongs to one process. A forked child joins the embedded servers itself, so that they run
until the last process has ended.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from helixqueue.errors import NotInstalled, Refused
from helixqueue.postgres.database import parse_dsn

if TYPE_CHECKING:
    from helixqueue.embedded import Postgres


class DatabaseSource(Protocol):
    def open(self) -> str:
        """Start the database if needed and return its DSN; cheap if it runs."""

    def close(self) -> None:
        """Release the database."""


class ServerSource:
    """A PostgreSQL server that is run elsewhere."""

    def __init__(self, dsn: str) -> None:
        parse_dsn(dsn)
        self._dsn = dsn

    def open(self) -> str:
        return self._dsn

    def close(self) -> None:
        pass


class EmbeddedSource:
    """PostgreSQL from its wheel, in `directory`: created, started or joined, and migrated."""

    def __init__(self, directory: str | Path) -> None:
        if not os.fspath(directory):
            # Path("") is the working directory, which an empty setting does not mean.
            raise Refused("expected a directory for the embedded servers, got an empty name")
        self._directory = Path(directory)
        self._postgres: Postgres | None = None
        self._dsns: dict[int, str] = {}

    def open(self) -> str:
        dsn = self._dsns.get(os.getpid())
        if dsn is None:
            dsn = self._dsns[os.getpid()] = self._started()
        return dsn

    def _started(self) -> str:
        try:
            from helixqueue.client.embedded_setup import set_up  # noqa: PLC0415 - it brings Alembic
            from helixqueue.embedded import Servers  # noqa: PLC0415 - not in every installation
        except ImportError as error:
            raise NotInstalled(error.name, "embedded") from error
        if self._postgres is None:
            # Only PostgreSQL: clients do not use Valkey.
            self._postgres = Servers(self._directory).postgres
        self._postgres.start()
        set_up(self._postgres)
        return self._postgres.dsn

    def close(self) -> None:
        if self._dsns.pop(os.getpid(), None) is not None and self._postgres is not None:
            self._postgres.stop()
