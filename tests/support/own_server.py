"""A server of a test's own, to be killed or left behind."""

from __future__ import annotations

import os
import random
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from helixqueue.embedded import Postgres
from helixqueue.engine.migrate import migrate
from helixqueue.engine.tokens import SERVICE_ROLES
from tests.support.database import Database
from tests.support.lab import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def new_server(directory: Path, **settings: str) -> Iterator[Database]:
    """A migrated server without a pooler."""
    bin_dir = os.environ.get("HELIX_TEST_POSTGRES")
    with Postgres(
        directory, settings=settings, bin_dir=Path(bin_dir) if bin_dir else None
    ) as server:
        migrate(server.migrator_dsn)
        with psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection:
            connection.execute("create role pool login")
            connection.execute("create role operator login")
            connection.execute(f"grant {', '.join(SERVICE_ROLES)}, helix_intake to pool")
            connection.execute("grant helix_operator to operator")
            connection.execute("select helix.bind_v1('pool', '*', false)")
        yield Database(server, "helix")


def loopback_address() -> str:
    """An address below 127, so that servers of other tests do not listen on it."""
    return ".".join(["127", *(str(random.randint(1, 254)) for _ in range(3))])


def accept_tcp(server: Postgres, dsn: str) -> None:
    """Let every role connect from this machine; wait until the server accepts `dsn`."""
    with psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection:
        connection.execute(
            "copy (select 'host all all 127.0.0.0/8 trust') to program 'cat >> pg_hba.conf'"
        )
        connection.execute("select pg_reload_conf()")
    wait_until(lambda: _accepts(dsn))


def _accepts(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True
