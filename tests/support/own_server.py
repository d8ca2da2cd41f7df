"""A server of a test's own, to be killed or left behind."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from helixqueue.embedded import Postgres
from helixqueue.engine.migrate import migrate
from helixqueue.engine.tokens import SERVICE_ROLES
from tests.support.database import Database

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def new_server(directory: Path) -> Iterator[Database]:
    """A migrated server without a pooler."""
    bin_dir = os.environ.get("HELIX_TEST_POSTGRES")
    with Postgres(directory, bin_dir=Path(bin_dir) if bin_dir else None) as server:
        migrate(server.migrator_dsn)
        with psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection:
            connection.execute("create role pool login")
            connection.execute("create role operator login")
            connection.execute(f"grant {', '.join(SERVICE_ROLES)}, helix_intake to pool")
            connection.execute("grant helix_operator to operator")
            connection.execute("select helix.bind_v1('pool', '*', false)")
        yield Database(server, "helix")
